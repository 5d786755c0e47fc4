"""What the user sees: a table that moves in a terminal, a line now and then elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from examples.shop.events import DAY_START
from examples.shop.progress import Batch, Story

LINE_EVERY_S: Final = 5.0
BAR_WIDTH: Final = 30


class View(Protocol):
    """Shows a story, again and again."""

    def show(self, story: Story, at_s: float) -> None: ...


class Screen:
    """In a terminal."""

    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, story: Story, at_s: float) -> None:
        self._live.update(screen(story, at_s), refresh=True)


class Lines:
    """In a file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._next_s = 0.0

    def show(self, story: Story, at_s: float) -> None:
        if at_s >= self._next_s:
            self._next_s = at_s + LINE_EVERY_S
            self._console.print(line(story, at_s), soft_wrap=True, highlight=False)


@contextmanager
def view(console: Console) -> Iterator[View]:
    """The one that fits the console."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield Screen(live)


def screen(story: Story, at_s: float) -> Group:
    """The whole picture."""
    queries = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    queries.add_column("query")
    for heading in ("batch", "rows", "rows/s", "batch time", "lag"):
        queries.add_column(heading, justify="right")
    queries.add_column("read", no_wrap=True)
    for name in story.names:
        bar = ProgressBar(story.event_count, story.read(name), width=BAR_WIDTH)
        queries.add_row(name, *_cells(story.last(name)), bar)
    written = Table.grid(padding=(0, 2))
    bar = ProgressBar(story.event_count, story.written, width=BAR_WIDTH)
    written.add_row("shop", shop_time(story), f"{story.written:,} orders written", bar)
    elapsed = Text(f"{at_s - story.started_s:.0f} s", style="dim")
    return Group(elapsed, written, queries)


def line(story: Story, at_s: float) -> str:
    """The same in one line."""
    parts = [
        f"{at_s - story.started_s:5.0f} s",
        f"shop {shop_time(story)} {story.written:,} written",
    ]
    for name in story.names:
        _, _, rows_per_s, time, lag = _cells(story.last(name))
        parts.append(f"{name} {story.read(name):,} read, {rows_per_s} rows/s, {time}, lag {lag}")
    return " | ".join(parts)


def shop_time(story: Story) -> str:
    """At the end of the day it is 24:00."""
    if not story.reports:
        return "--:--"
    _, report = story.reports[-1]
    minutes = int(report.shop_time_s - DAY_START.timestamp()) // 60
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _cells(batch: Batch | None) -> tuple[str, str, str, str, str]:
    if batch is None:
        return ("-",) * 5
    return (
        f"{batch.batch_id}",
        f"{batch.rows:,}",
        f"{batch.rows_per_s:,.0f}",
        f"{batch.duration_s:.1f} s",
        "-" if batch.lag is None else f"{batch.lag:,}",
    )
