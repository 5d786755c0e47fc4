"""I-11 in a cluster: compares logs when a broker comes back with what they had when it ended.

A log loses nothing by a kill, and by a power loss nothing that it had reported as durable; it never
has other batches than before. That is checked right after the logs are loaded: later a leader may
have them truncated, which is another invariant (I-08).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.broker.broker import Broker
from millstream.storage.log.log import Log
from millstream.testing.history.cluster_invariants import Violation
from millstream.testing.history.cluster_views import BatchView
from millstream.testing.sim.disk import SimDisk
from millstream.testing.simulation.cluster.broker_views import has_files, stored_batches


class LogFate(NamedTuple):
    """A log when its process ended."""

    name: str
    log_start: int
    log_end: int
    durable_end: int
    """Everything below it must be there again: all of it after a kill or a stop."""
    batches: Sequence[BatchView]


class LogFound(NamedTuple):
    """A log as it was loaded."""

    log_start: int
    log_end: int
    batches: Sequence[BatchView]


def check_recovery(fate: LogFate, found: LogFound | None) -> Iterator[Violation]:
    """Violations of I-11; `found` is None for a log that no longer exists."""
    if found is None:
        if fate.durable_end > fate.log_start:
            text = f"is gone, though it was durable up to {fate.durable_end}"
            yield Violation("I-11", f"{fate.name} {text}")
        return
    if found.log_end < fate.durable_end:
        text = f"ends at {found.log_end}, though it was durable up to {fate.durable_end}"
        yield Violation("I-11", f"{fate.name} {text}")
    if found.log_end > max(fate.log_end, found.log_start):
        text = f"ends at {found.log_end}, it ended at {fate.log_end}"
        yield Violation("I-11", f"{fate.name} {text}")
    before = [one for one in fate.batches if one.next_offset > found.log_start]
    now = [one for one in found.batches if one.next_offset > found.log_start]
    if now != before[: len(now)]:
        pairs = zip(now, before, strict=False)
        strange = next((pair for pair in pairs if pair[0] != pair[1]), (now[-1], None))
        yield Violation("I-11", f"{fate.name} has {strange[0]} where {strange[1]} was")


class RecoveryWatch:
    """Compares one machine's logs from one process to the next."""

    def __init__(self) -> None:
        self._fates: dict[str, LogFate] = {}
        self.compared = 0
        """How many logs came back and were compared."""

    def note(self, broker: Broker, disk: SimDisk, *, loses_power: bool) -> None:
        """The process ends now."""
        self._fates = {
            log.context.directory: _fate(log, disk, loses_power=loses_power)
            for log in broker.logs
            # The last state of a log that failed is not known.
            if log.failure is None and has_files(disk, log)
        }

    def forget(self, directory: str) -> None:
        """Its logs are gone for good."""
        inside = [one for one in self._fates if one.startswith(f"{directory}/")]
        for one in inside:
            del self._fates[one]

    def compare(
        self, broker: Broker, disk: SimDisk, *, absent: str | None = None
    ) -> list[Violation]:
        """The next one has loaded its logs, and nothing else; `absent` is a lost directory."""
        logs: Mapping[str, Log] = {log.context.directory: log for log in broker.logs}
        found: list[Violation] = []
        for directory, fate in self._fates.items():
            if absent is not None and directory.startswith(f"{absent}/"):
                continue
            log = logs.get(directory)
            one = None
            if log is not None:
                one = LogFound(log.log_start, log.log_end, stored_batches(disk, directory))
                self.compared += 1
            found += check_recovery(fate, one)
        return found


def _fate(log: Log, disk: SimDisk, *, loses_power: bool) -> LogFate:
    return LogFate(
        log.context.directory,
        log.log_start,
        log.log_end,
        log.recovery_point if loses_power else log.log_end,
        stored_batches(disk, log.context.directory),
    )
