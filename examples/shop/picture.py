"""The run as a picture: what was sold in the shop's day, and how the pipeline kept up with it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from examples.shop.catalogue import CATEGORIES
from examples.shop.expected import WINDOW_COUNT, WINDOW_S, Slot, Total, window_start
from examples.shop.progress import Story

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS: Final = (
    "#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#edc948", "#76b7b2", "#9c755f",
)  # fmt: skip
INK, PALE = "#333333", "#dddddd"
QUERY_COLOURS: Final = ("#e15759", "#4e79a7", "#59a14f")
STYLE: Final[Any] = {
    "font.size": 9,
    "axes.edgecolor": PALE,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "grid.color": PALE,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
RATE_STEP_S: Final = 2.0
"""Rates are over so many seconds: over less they would show the ticks of the shop."""
LAG_STEP_S: Final = 0.2
_WINDOWS: Final = range(WINDOW_COUNT)

Floats = NDArray[np.float64]


def draw(path: Path, story: Story, totals: dict[Slot, Total]) -> None:
    """Write the picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            4, 1, figsize=(11, 13), height_ratios=(3, 2, 2, 1.6), constrained_layout=True
        )
        figure.suptitle(_headline(story, totals), fontsize=13, fontweight="bold", x=0.01, ha="left")
        _draw_totals(axes[0], totals)
        _draw_rates(axes[1], story)
        _draw_lag(axes[2], story)
        _draw_batches(axes[3], story)
        figure.savefig(path, dpi=130)
        pyplot.close(figure)


def _headline(story: Story, totals: dict[Slot, Total]) -> str:
    orders = sum(total.orders for total in totals.values())
    return f"{story.event_count:,} records, {orders:,} orders, {_seconds(story):.0f} seconds"


def _draw_totals(axes: "Axes", totals: dict[Slot, Total]) -> None:
    """Revenue of every window, as the topic of totals has it."""
    hours_of_window = WINDOW_S / 3600
    heights = [
        [_revenue(totals.get(Slot(window_start(window), category))) for window in _WINDOWS]
        for category in CATEGORIES
    ]
    edges = [window * hours_of_window for window in (*_WINDOWS, WINDOW_COUNT)]
    columns = [[*row, row[-1]] for row in heights]
    axes.stackplot(edges, columns, labels=CATEGORIES, colors=COLOURS, step="post", linewidth=0)
    axes.set_title("Totals: revenue per quarter of an hour and category, over the shop's day")
    axes.set_xlim(0, 24)
    axes.set_xticks(range(0, 25, 3), [f"{hour:02}:00" for hour in range(0, 25, 3)])
    axes.set_ylabel("thousand")
    axes.legend(ncols=len(CATEGORIES), loc="upper left", fontsize=8)


def _revenue(total: Total | None) -> float:
    return total.revenue_cents / 100_000 if total else 0.0


def _draw_rates(axes: "Axes", story: Story) -> None:
    """Both as differences of running counts, so that they can be compared."""
    at = np.arange(0, _seconds(story) + RATE_STEP_S, RATE_STEP_S)
    middle = at[1:] - RATE_STEP_S / 2
    written = np.diff(_written(story, at)) / RATE_STEP_S / 1000
    axes.fill_between(middle, written, color="#bab0ac", alpha=0.5, linewidth=0, label="written")
    for name, colour in zip(story.names, QUERY_COLOURS, strict=False):
        read = np.diff(_read(story, name, at)) / RATE_STEP_S / 1000
        axes.plot(middle, read, color=colour, linewidth=1.4, label=f"read by {name}")
    _finish(axes, story, "Events: thousand a second, over the time of the run")


def _draw_lag(axes: "Axes", story: Story) -> None:
    at = np.arange(0, _seconds(story), LAG_STEP_S)
    for name, colour in zip(story.names, QUERY_COLOURS, strict=False):
        behind = (_written(story, at) - _taken(story, name, at)) / 1000
        axes.plot(at, behind, color=colour, linewidth=1.2, label=name)
        axes.fill_between(at, behind, color=colour, alpha=0.12, linewidth=0)
    _finish(axes, story, "Lag: thousand records that are written and not yet worked off")


def _draw_batches(axes: "Axes", story: Story) -> None:
    for name, colour in zip(story.names, QUERY_COLOURS, strict=False):
        batches = story.of(name)
        at = [batch.ended_s - story.started_s for batch in batches]
        took = [batch.duration_s for batch in batches]
        axes.plot(at, took, "o-", color=colour, markersize=3, linewidth=0.8, label=name)
    _finish(axes, story, "Seconds per micro-batch")
    axes.set_xlabel("seconds since the start")


def _written(story: Story, at: Floats) -> Floats:
    """Orders written until then."""
    reported_s = [reported_s - story.started_s for reported_s, _ in story.reports]
    return np.interp(at, [0, *reported_s], [0, *(report.written for _, report in story.reports)])


def _read(story: Story, name: str, at: Floats) -> Floats:
    """Orders read until then, as if a batch took them evenly."""
    ends, reads = _ends(story, name)
    begins = [batch.ended_s - batch.duration_s - story.started_s for batch in story.of(name)]
    points = sorted([*zip(ends, reads, strict=True), *zip(begins, reads[:-1], strict=True)])
    return np.interp(at, [end for end, _ in points], [read for _, read in points])


def _taken(story: Story, name: str, at: Floats) -> Floats:
    """Orders of the batches that had ended by then."""
    ends, reads = _ends(story, name)
    return np.array(reads)[np.searchsorted(ends, at, side="right") - 1]


def _ends(story: Story, name: str) -> tuple[list[float], list[int]]:
    batches = story.of(name)
    ends = [0.0, *(batch.ended_s - story.started_s for batch in batches)]
    return ends, [0, *(batch.read for batch in batches)]


def _seconds(story: Story) -> float:
    return max(story.ended_s - story.started_s, LAG_STEP_S)


def _finish(axes: "Axes", story: Story, title: str) -> None:
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, _seconds(story))
    axes.legend(loc="upper right", ncols=3, fontsize=8)
