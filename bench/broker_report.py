"""The result file of `make bench PART=broker` as the tables of docs/performance.md.

`python -m bench.broker_report [build/bench/broker.json]` prints Markdown.
"""

import json
import sys
from pathlib import Path

from bench.measure import Row

RESULT = Path("build/bench/broker.json")


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULT
    print(markdown(json.loads(path.read_text())))


def markdown(rows: list[Row]) -> str:
    lines = ["| what | ours | peer | ratio | goal | |", "|---|---|---|---|---|---|"]
    lines += [_line(row) for row in rows]
    return "\n".join(lines)


def _line(row: Row) -> str:
    goal = ""
    if row["goal"] is not None:
        goal = f"{'<=' if row.get('goal_is_most') else '>='} {row['goal']:g}"
    marks = [{None: "", True: "met", False: "**missed**"}[row["met"]]]
    marks += ["~"] if row.get("ranges_overlap") else []
    marks += ["!"] if row.get("disturbed") else []
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    cells = [row["what"], _figure(row, "ours"), _figure(row, "peer"), ratio, goal]
    return "| " + " | ".join([*cells, " ".join(filter(None, marks))]) + " |"


def _figure(row: Row, name: str) -> str:
    """Median, and the range where there were several runs."""
    if row[name] is None:
        return ""
    low, high = row.get(f"{name}_range", (row[name], row[name]))
    text = _short(row[name])
    return text if low == high else f"{text} ({_short(low)}-{_short(high)})"


def _short(value: float) -> str:
    for limit, unit in ((1e6, " M"), (1e4, " k")):
        if value >= limit:
            return f"{value / (1e6 if unit == ' M' else 1e3):.3g}{unit}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
