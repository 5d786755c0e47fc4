"""`make bench PART=p`: runs the parts, prints a table, writes JSON and a plot per part.

In the table, `~` means that the ranges of both systems overlap, `!` that other processes took more
than a tenth of a core in every attempt.
"""

import argparse
import importlib
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.broker_systems import AGAINST
from bench.measure import Row, save

PARTS = ("kernels", "log", "broker", "cluster", "spark", "groups", "hostile")
RESULTS = Path("build/bench")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="all", choices=["all", *PARTS])
    chosen = parser.parse_args().part
    console = Console(width=150)
    for part in PARTS if chosen == "all" else (chosen,):
        rows: list[Row] = importlib.import_module(f"bench.{part}").measure()
        if AGAINST is not None:
            rows = [{**one, "goal": None, "met": None} for one in rows]  # goals are for Kafka
        console.print(_table(part, rows))
        console.print(f"written: {save(part, rows, RESULTS)} {_plot(part, rows)}")


def _table(part: str, rows: list[Row]) -> Table:
    table = Table(title=f"bench {part}")
    for name in ("what", "ours", "peer", "ratio", "goal", "met", "others' CPU"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        met = {None: "", True: "yes", False: "NO"}[row["met"]]
        others = f"{row['others_cores']:.2f}" if "others_cores" in row else ""
        mark = " !" if row.get("disturbed") else ""
        cells = (_number(row[name]) for name in ("ours", "peer", "ratio"))
        # Where the ranges overlap, no difference is claimed.
        met += " ~" if row.get("ranges_overlap") and row["goal"] is not None else ""
        table.add_row(row["what"], *cells, _goal(row), met, others + mark)
    return table


def _goal(row: Row) -> str:
    if row["goal"] is None:
        return ""
    return ("<= " if row.get("goal_is_most") else ">= ") + _number(row["goal"])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"


def _plot(part: str, rows: list[Row]) -> Path:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row["ratio"] is not None]
    if not shown:
        return Path("without a plot")
    figure, axes = pyplot.subplots(figsize=(10, 0.45 * len(shown) + 1.2))
    axes.barh([row["what"] for row in shown], [row["ratio"] for row in shown])
    axes.axvline(1.0, linestyle="--", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("ours : peer")
    if max(row["ratio"] for row in shown) > 10:
        axes.set_xscale("log")
    figure.tight_layout()
    path = RESULTS / f"{part}.png"
    figure.savefig(path)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    main()
