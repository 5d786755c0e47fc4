"""Keeps all compacted logs of a broker clean: the dirtiest one first, one at a time.

What a cleaning itself needs is in `work` and loaded with the first compacted log: it is no part of
a broker's start.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.model.errors import StorageFailed
from millstream.model.ids import TimestampMs, TopicPartition
from millstream.model.limits import CLEANER_KEY_MAP_BYTES_MAX
from millstream.runtime.background import Background
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.storage.log.log import Log
from millstream.storage.throttle import CancelFlag, Pause, Throttle

if TYPE_CHECKING:
    from millstream.storage.compaction.log_cleaning import Cleaning, CleaningReport
    from millstream.storage.compaction.plan import DirtyRange

POSTPONED_S: Final = 60.0
"""A log that found no room or no descriptor waits this long, so that others get their turn."""

_HASH_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerLimits:
    """Kafka's `log.cleaner.*` settings."""

    key_map_bytes: int = CLEANER_KEY_MAP_BYTES_MAX
    bytes_per_s: float = math.inf
    """Read and written together."""


class Cleaner:
    """Owned by the thread that owns the logs; the work runs in `background`."""

    def __init__(
        self,
        logs: Iterable[Log],
        *,
        clock: Clock,
        randomness: Randomness,
        background: Background,
        limits: CleanerLimits = CleanerLimits(),
        pause: Pause = CancelFlag.wait,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._randomness = randomness
        self._background = background
        self._limits = limits
        self.throttle = Throttle(clock, bytes_per_s=limits.bytes_per_s, pause=pause)
        self._cleaning: Cleaning | None = None
        self._is_stopped = False
        self._uncleanable: dict[TopicPartition, tuple[Log, str]] = {}
        self._postponed_until_s: dict[TopicPartition, float] = {}
        self.on_report: Callable[[CleaningReport], None] | None = None
        """Told of every end; for metrics and the operator's log."""

    @property
    def in_progress(self) -> TopicPartition | None:
        """The log being cleaned."""
        return self._cleaning.log.partition if self._cleaning is not None else None

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Logs that cannot be cleaned and why; they are left as they are."""
        return {partition: why for partition, (_, why) in self._uncleanable.items()}

    def run_once(self) -> TopicPartition | None:
        """Begin with the dirtiest log unless one is being cleaned; the one begun now."""
        if self._cleaning is not None:
            self._cleaning.resume()
            return None
        if self._is_stopped:
            return None
        found = self._dirtiest()
        if found is None:
            return None
        log, dirty = found
        from millstream.storage.compaction import work

        means = work.Means(
            self.throttle,
            self._background,
            key_map_bytes=self._limits.key_map_bytes,
            hash_key=self._randomness.bytes(_HASH_KEY_BYTES),
            now_ms=TimestampMs(self._clock.wall_ms()),
        )
        cleaning = work.cleaning_of(log, dirty, means, self._ended)
        self._cleaning = cleaning
        cleaning.start()
        return log.partition

    def stop(self) -> None:
        """Begin nothing more and let go of what is being cleaned; before the logs are closed.

        A swap that has begun is finished, blocking.
        """
        self._is_stopped = True
        if self._cleaning is not None:
            self._cleaning.stop()

    # -- choosing --------------------------------------------------------------------------

    def _dirtiest(self) -> "tuple[Log, DirtyRange] | None":
        now_ms = TimestampMs(self._clock.wall_ms())
        best: tuple[Log, DirtyRange] | None = None
        for log in self._logs:
            if not log.config.cleanup_compact or self._is_excluded(log):
                continue
            dirty = self._weighed(log, now_ms)
            if dirty is not None and (best is None or dirty.ratio > best[1].ratio):
                best = log, dirty
        return best

    def _weighed(self, log: Log, now_ms: TimestampMs) -> "DirtyRange | None":
        """What of the log is worth cleaning; an error costs this log its turn, no other."""
        from millstream.storage.compaction import work

        try:
            return work.dirty_enough(log, now_ms)
        except OSError as error:
            if not isinstance(log.refused(error), StorageFailed):
                self._postpone(log.partition)
            return None
        except work.CORRUPT_ERRORS as error:
            self._uncleanable[log.partition] = log, str(error)
            self._tell(work.corrupt(log.partition, str(error)))
            return None

    def _is_excluded(self, log: Log) -> bool:
        if log.cleaning is not None:  # it moves to another directory
            return True
        known = self._uncleanable.get(log.partition)
        if known is not None:
            if known[0] is log:
                return True
            del self._uncleanable[log.partition]  # the topic was created anew
        until_s = self._postponed_until_s.get(log.partition)
        if until_s is not None and self._clock.monotonic_s() >= until_s:
            del self._postponed_until_s[log.partition]
            until_s = None
        return until_s is not None

    # -- after -----------------------------------------------------------------------------

    def _ended(self, report: "CleaningReport") -> None:
        from millstream.storage.compaction.log_cleaning import End

        cleaning, self._cleaning = self._cleaning, None
        if cleaning is not None and report.end is End.CORRUPT:
            self._uncleanable[report.partition] = cleaning.log, report.detail
        if report.end in (End.DISK_FULL, End.NO_DESCRIPTORS):
            self._postpone(report.partition)
        self._tell(report)
        if report.end in (End.CLEANED, End.CORRUPT, End.DISK_FULL):
            self.run_once()

    def _postpone(self, partition: TopicPartition) -> None:
        self._postponed_until_s[partition] = self._clock.monotonic_s() + POSTPONED_S

    def _tell(self, report: "CleaningReport") -> None:
        if self.on_report is not None:
            self.on_report(report)
