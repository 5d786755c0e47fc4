"""Metrics as names with a callback each: nothing is computed before a scrape.

A callback runs on the loop's thread at scrape time and must not block. If one fails its own family
is left out and the failure is counted; the others are still reported.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from millstream.observe.logs import get_logger
from millstream.runtime.fatal import end_if_fatal

T = TypeVar("T")

log = get_logger("millstream.observe.registry")

PREFIX: Final = "millstream_"
_STANDARD_PREFIX: Final = "process_"
"""Prometheus' own names for memory and descriptors: every process dashboard knows them."""

_NAME: Final = re.compile(r"[a-z]([a-z0-9_]*[a-z0-9])?")


class Kind(StrEnum):
    """Prometheus' types, as far as we use them."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Distribution(NamedTuple):
    """One histogram: `counts` has one number per bound and one for everything above."""

    bounds: Sequence[float]
    counts: Sequence[int]
    total: float


Value = float | Distribution
Labels = tuple[str, ...]
Readings = Iterable[tuple[Labels, Value]]
Batch = Sequence[tuple[Labels, Value]]
"""What is read in one step; empty if a step found no values."""


class Family(NamedTuple):
    """One metric with all its label values."""

    name: str
    kind: Kind
    help_text: str
    label_names: Labels
    read: Callable[[], Readings]
    read_stepwise: Callable[[], Iterable[Batch]] | None = None
    """Instead of `read`, if there are too many values to read at once."""


class Registry:
    """The families of one process, reported in the order of their names."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._before_scrape: list[Callable[[], None]] = []
        self._failed_reads = 0
        self._reported: set[str] = set()
        self.register_counter(
            "scrape_failures_total",
            "Metrics that could not be read during a scrape and were left out of it",
            lambda: self._failed_reads,
        )

    def register_gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A number that goes up and down; `name` gets our prefix when it lacks it."""
        self._add(Family(name, Kind.GAUGE, help_text, (), lambda: [((), read())]))

    def register_counter(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A number that only grows; its name ends with `_total`."""
        self._add(Family(name, Kind.COUNTER, help_text, (), lambda: [((), read())]))

    def register_labelled(
        self,
        name: str,
        help_text: str,
        read: Callable[[], Readings],
        *,
        kind: Kind = Kind.GAUGE,
        label_names: Sequence[str],
    ) -> None:
        """Many values under one name; `read` gives (label values, value) pairs."""
        self._add(Family(name, kind, help_text, tuple(label_names), read))

    def register_stepwise(
        self,
        name: str,
        help_text: str,
        read: Callable[[], Iterable[Batch]],
        *,
        label_names: Sequence[str],
    ) -> None:
        """A gauge with more values than can be read at once.

        `read` gives them in batches of a few hundred; requests are served between two, and may
        change what is read.
        """
        self._add(Family(name, Kind.GAUGE, help_text, tuple(label_names), tuple, read))

    def _add(self, family: Family) -> None:
        name = family.name
        if not name.startswith((PREFIX, _STANDARD_PREFIX)):
            name = PREFIX + name
        if not _NAME.fullmatch(name) or not all(map(_NAME.fullmatch, family.label_names)):
            raise ValueError(f"not a metric's name or labels: {name} {family.label_names}")
        if (family.kind is Kind.COUNTER) is not name.endswith("_total"):
            raise ValueError(f"counters, and only counters, end with _total: {name}")
        if name in self._families:
            raise ValueError(f"{name} is registered twice")
        self._families[name] = family._replace(name=name)

    def before_scrape(self, refresh: Callable[[], None]) -> None:
        """Run `refresh` once per scrape, for what several families are read from."""
        self._before_scrape.append(refresh)

    def begin_scrape(self) -> None:
        """Refresh what families share."""
        for refresh in self._before_scrape:
            self._guarded(refresh, None, name="before_scrape")

    def names(self) -> list[str]:
        """Every registered name, sorted."""
        return sorted(self._families)

    def families(self) -> list[Family]:
        """Every family, sorted by name."""
        return [self._families[name] for name in self.names()]

    def read(self, family: Family) -> Iterator[Batch]:
        """The family's values in one batch or in several; they end when its callback fails."""
        stepwise = family.read_stepwise
        if stepwise is None:
            # At once: what is read may change between two chunks of the text.
            yield self._guarded(lambda: list(family.read()), [], name=family.name)
            return
        nothing: Iterator[Batch] = iter(())
        batches = self._guarded(lambda: iter(stepwise()), nothing, name=family.name)
        while True:
            batch = self._guarded(lambda: next(batches, None), None, name=family.name)
            if batch is None:
                return
            yield batch

    def _guarded(self, work: Callable[[], T], instead: T, *, name: str) -> T:
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - a scrape reports what it can
            end_if_fatal(error)
            self._failed_reads += 1
            if name not in self._reported:  # every client can scrape, as often as it likes
                self._reported.add(name)
                log.warning("cannot read metric", metric=name, error=error)
            return instead
