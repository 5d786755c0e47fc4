"""The demo from the beginning to the end: brokers, shop, Spark, checks, picture."""

import fcntl
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from examples.shop import pipeline
from examples.shop.accident import Accident
from examples.shop.checks import Check, checks
from examples.shop.events import Day
from examples.shop.expected import expected
from examples.shop.picture import draw
from examples.shop.processes import (
    DemoFailed,
    require_java,
    running_brokers,
    running_shop,
    running_spark,
)
from examples.shop.progress import Story
from examples.shop.results import results
from examples.shop.terminal import view
from examples.shop.traffic import client_of, write_catalogue
from examples.shop.watching import play
from millstream.client.admin import NewTopic, or_raise

COMPACTED: Final = {"cleanup.policy": "compact"}
TOPICS: Final = (
    NewTopic(name=pipeline.ORDERS, partitions=4),
    NewTopic(name=pipeline.PRODUCTS, partitions=2, configs=COMPACTED),
    NewTopic(name=pipeline.TOTALS, partitions=2, configs=COMPACTED),
    NewTopic(name=pipeline.DEAD_LETTERS, partitions=1),
)
DIFFERENCES_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the command line says."""

    day: Day
    seconds: float
    """How long the shop takes for its day."""
    directory: Path


def run(plan: Plan, console: Console) -> bool:
    """Whether everything matched. Raises DemoFailed when that could not be found out."""
    require_java(console.print)
    with only_here(plan.directory), ExitStack() as stack:
        begun_s = time.monotonic()
        brokers = stack.enter_context(running_brokers(plan.directory / "brokers"))
        servers = brokers.servers
        prepare(servers, plan.day)
        log = plan.directory / "shop.log"
        shop = stack.enter_context(running_shop(servers, plan.day, seconds=plan.seconds, log=log))
        story = Story(pipeline.QUERIES, plan.day.event_count, time.time(), reports=shop.reports)
        console.print(f"brokers on {servers}; the shop is open; starting Spark ...")
        spark = stack.enter_context(running_spark(plan.directory))
        queries = pipeline.Pipeline(spark, servers, plan.directory)
        accident = Accident(brokers, console.print)
        with view(console) as shown:
            play(spark, queries, shop, story, shown, on_poll=accident.check)
        console.print("the day is over; checking ...")
        found = results(servers, plan.directory)
        compared = checks(expected(plan.day), found, late_rows=story.late_rows)
        if accident.killed is None:
            raise DemoFailed("no broker was killed")
        picture = plan.directory / "shop.png"
        draw(picture, story, dict(found.totals))
    tell(compared, console)
    console.print(f"picture: {picture}\norders:  {plan.directory / 'parquet'}", soft_wrap=True)
    console.print(f"took {time.monotonic() - begun_s:.0f} seconds")
    return all(one.is_good for one in compared)


def prepare(servers: str, day: Day) -> None:
    """What is there when the shop opens: topics, and the products in theirs."""
    for made in client_of(servers).create_topics(TOPICS).values():
        or_raise(made)
    write_catalogue(servers, day.seed)


def tell(compared: Sequence[Check], console: Console) -> None:
    """The outcome of every check, and the first differences."""
    for check in compared:
        mark = "[green]matched[/]" if check.is_good else "[red]WRONG[/]"
        console.print(f"{mark}: {check.name}", highlight=False)
        for text in check.differences[:DIFFERENCES_SHOWN]:
            console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)
        if more := len(check.differences[DIFFERENCES_SHOWN:]):
            console.print(f"  and {more:,} more")


@contextmanager
def only_here(directory: Path) -> Iterator[None]:
    """An empty directory, and no other demo in it. Raises DemoFailed."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DemoFailed(f"another demo is running in {directory}") from None
        for path in set(directory.iterdir()) - {directory / "lock"}:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield
