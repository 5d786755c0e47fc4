"""Starts the pipeline, polls it until the day is over, and stops it."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from examples.shop.events import DAY_START
from examples.shop.pipeline import Pipeline
from examples.shop.processes import DemoFailed, Shop
from examples.shop.progress import Story, batches_of
from examples.shop.terminal import View

DAY_END: Final = DAY_START + timedelta(days=1)
POLL_S: Final = 0.2
STALLED_S: Final = 300.0
"""When no order is written and no batch done for this long, something hangs."""


class Listener(StreamingQueryListener):
    """Adds to the story what Spark tells; on a thread of Spark's."""

    def __init__(self, story: Story) -> None:
        self._story = story

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing to tell."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        self._story.batches.extend(batches_of([event.progress]))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing to tell."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """`watch` sees it, and asks for the reason."""


class Interruption:
    """Notes Ctrl-C, for when nothing is in progress.

    Raised in the middle of a call to Java it would break the connection to it, and Spark would
    print that, not stop. What comes after the first is ignored: stopping is under way.
    """

    def __init__(self) -> None:
        self._came = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        self._came = True

    def check(self) -> None:
        """Raises KeyboardInterrupt."""
        if self._came:
            raise KeyboardInterrupt


@contextmanager
def noted_interruption() -> Iterator[Interruption]:
    """For SIGINT and SIGTERM."""
    interruption = Interruption()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interruption.note) for number in numbers]
    try:
        yield interruption
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def play(
    spark: SparkSession,
    pipeline: Pipeline,
    shop: Shop,
    story: Story,
    view: View,
    *,
    on_poll: Callable[[Story], None] = lambda _: None,
) -> None:
    """The whole day. Raises DemoFailed."""

    def on_poll_done() -> None:
        interruption.check()
        on_poll(story)

    listener = Listener(story)
    with noted_interruption() as interruption:
        spark.streams.addListener(listener)
        queries = pipeline.start()
        try:
            watch(queries, shop, story, view, on_poll_done)
        finally:
            for query in queries:
                query.stop()
            spark.streams.removeListener(listener)


def watch(
    queries: Sequence[StreamingQuery],
    shop: Shop,
    story: Story,
    view: View,
    on_poll_done: Callable[[], None] = lambda: None,
) -> None:
    """Until every order is read and the last total of the day is written. Raises DemoFailed.

    A window's total is written when a newer order is seen. So the last ones of the day wait for the
    next morning, which begins when all orders of the day are read: the earlier it came, the
    earlier it would close windows for orders that are still to be read.
    """
    is_morning = False
    seen, seen_s = (0, 0), time.monotonic()
    while not (is_morning and story.is_read(story.event_count + 1) and story.has_passed(DAY_END)):
        on_poll_done()
        view.show(story, time.time())
        shop.check()
        _check(queries)
        if not is_morning and story.is_read(story.event_count):
            shop.open_next_morning()
            is_morning = True
        if (now := (story.written, len(story.batches))) != seen:
            seen, seen_s = now, time.monotonic()
        if time.monotonic() > seen_s + STALLED_S:
            raise DemoFailed(f"nothing happened for {STALLED_S:.0f} seconds")
        time.sleep(POLL_S)
    view.show(story, time.time())


def _check(queries: Sequence[StreamingQuery]) -> None:
    for query in queries:
        if not query.isActive:
            raise DemoFailed(f"query {query.name} has ended: {query.exception()}")
