"""Counts what a run has met, where it happens: a simulation must not silently test nothing."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from millstream.controller.cluster import errors as controller_errors
from millstream.model import errors as model_errors
from millstream.replication import errors as replication_errors
from millstream.storage.log.log import Log

TRUNCATIONS: Final = "truncations"
FENCED: Final = "fenced requests"

_FENCING: Final = (
    model_errors.FencedLeaderEpoch,
    replication_errors.UnknownLeaderEpoch,
    controller_errors.StaleBrokerEpoch,
    controller_errors.InvalidUpdateVersion,
)
"""Each is raised when a request is refused because its epoch or version is old."""

IN_SIXTY_SEEDS: Final = {
    "elections": 50,
    TRUNCATIONS: 30,
    FENCED: 30,
    "isr shrinks": 20,
    "controller changes": 10,
    "lost replies": 10,
    "recoveries": 60,
    "directories lost": 20,
    "replicas reported lost": 20,
}
"""What the fixed seeds of `make test` must meet together, and with it any run that is as long."""
SEEDS_TO_MEET_ALL: Final = 60
TOO_SLOW: Final = "seeds of too much CPU"
CPU_S_MAX: Final = 4.0
"""For a seed of the usual length; more of them find more than longer ones."""


def missing_events(counts: Mapping[str, int], seeds: int) -> list[str]:
    """Events that so many seeds met too seldom, with their counts, and seeds that were too slow."""
    if seeds < SEEDS_TO_MEET_ALL:
        return []
    event = [
        f"{name} ({counts.get(name, 0)} of {least})"
        for name, least in IN_SIXTY_SEEDS.items()
        if counts.get(name, 0) < least
    ]
    slow_count = counts.get(TOO_SLOW, 0)
    return [*event, f"{slow_count} {TOO_SLOW}"] if slow_count else event


@contextmanager
def count_events(counts: Counter[str]) -> Iterator[None]:
    """Count while the context is open; nothing else changes."""
    with ExitStack() as patches:
        for error in _FENCING:
            patches.enter_context(_after_each(error, "__init__", counts, FENCED))
        patches.enter_context(_counting_truncations(counts))
        yield


def _after_each(owner: Any, name: str, counts: Counter[str], event: str) -> Any:
    original: Callable[..., Any] = getattr(owner, name)

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        counts[event] += 1
        return original(self, *arguments, **options)

    return mock.patch.object(owner, name, counting)


def _counting_truncations(counts: Counter[str]) -> Any:
    original: Callable[..., Any] = Log.truncate_to

    def counting(self: Log, *arguments: Any, **options: Any) -> Any:
        end = self.log_end
        done = original(self, *arguments, **options)
        counts[TRUNCATIONS] += self.log_end < end
        return done

    return mock.patch.object(Log, "truncate_to", counting)
