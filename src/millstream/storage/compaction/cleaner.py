"""Cleans all compacted logs of a broker: the dirtiest one first, one at a time.

What a cleaning itself needs is in `work` and loaded with the first compacted log: a broker's start
does not load it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from millstream.model.errors import OperatingError, StorageFailed
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
    from millstream.storage.compaction.recovery_points import Flush, RecoveryPointCheckpoint

RETRY_DELAY_S: Final = 60.0
"""A log that found no room or no descriptor waits this long, so that others are cleaned."""

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
        flush: "Flush",
        limits: CleanerLimits = CleanerLimits(),
        pause: Pause = CancelFlag.wait,
    ) -> None:
        """`flush` makes a log durable and calls back, as `LogManager.flush` does."""
        self._logs = logs
        self._flush = flush
        self._clock = clock
        self._randomness = randomness
        self._background = background
        self._limits = limits
        self.throttle = Throttle(clock, bytes_per_s=limits.bytes_per_s, pause=pause)
        self._checkpoint_run: RecoveryPointCheckpoint | None = None
        """Of the log that is cleaned next."""
        self._cleaning: Cleaning | None = None
        self._is_stopped = False
        self._uncleanable: dict[TopicPartition, tuple[Log, str]] = {}
        self._postponed_until_s: dict[TopicPartition | str, float] = {}
        """Logs; and directories that refused a checkpoint, in which only trusted segments are
        cleaned meanwhile."""
        self.on_report: Callable[[CleaningReport], None] | None = None
        """Called at the end of every cleaning; for metrics and the broker's log."""

    @property
    def in_progress(self) -> TopicPartition | None:
        """The log being cleaned."""
        return self._cleaning.log.partition if self._cleaning is not None else None

    @property
    def uncleanable(self) -> dict[TopicPartition, str]:
        """Logs that cannot be cleaned and why; they are left as they are."""
        return {partition: why for partition, (_, why) in self._uncleanable.items()}

    def run_once(self) -> TopicPartition | None:
        """Start to clean the dirtiest log unless one is being cleaned; the one started now."""
        busy = self._cleaning or self._checkpoint_run
        if busy is not None:
            busy.resume()
            return None
        if self._is_stopped:
            return None
        found = self._dirtiest()
        if found is None:
            return None
        log, dirty = found
        if dirty.end_offset > log.trusted_end:
            self._checkpoint(log, dirty)
        else:
            self._clean(log, dirty)
        return log.partition

    def _checkpoint(self, log: Log, dirty: "DirtyRange") -> None:
        from millstream.storage.compaction.recovery_points import RecoveryPointCheckpoint

        self._checkpoint_run = RecoveryPointCheckpoint(
            log,
            self._logs,
            flush=self._flush,
            background=self._background,
            on_end=self._checkpointed,
        )
        self._checkpoint_run.start(dirty.end_offset)

    def _clean(self, log: Log, dirty: "DirtyRange") -> None:
        from millstream.storage.compaction import work

        resources = work.CleaningResources(
            self.throttle,
            self._background,
            key_map_bytes=self._limits.key_map_bytes,
            hash_key=self._randomness.bytes(_HASH_KEY_BYTES),
            now_ms=TimestampMs(self._clock.wall_ms()),
        )
        cleaning = work.make_cleaning(log, dirty, resources, self._ended)
        self._cleaning = cleaning
        cleaning.start()

    def stop(self) -> None:
        """Begin nothing more and release the log being cleaned; before the logs are closed.

        A swap that has begun is finished, blocking.
        """
        self._is_stopped = True
        for busy in (self._cleaning, self._checkpoint_run):
            if busy is not None:
                busy.stop()

    # -- choosing --------------------------------------------------------------------------

    def _dirtiest(self) -> "tuple[Log, DirtyRange] | None":
        now_ms = TimestampMs(self._clock.wall_ms())
        best: tuple[Log, DirtyRange] | None = None
        for log in self._logs:
            if not log.config.cleanup_compact or self._is_excluded(log):
                continue
            is_trusted_only = self._is_postponed(log.owner.path)
            dirty = self._find_cleanable(log, now_ms, is_trusted_only=is_trusted_only)
            if dirty is not None and (best is None or dirty.ratio > best[1].ratio):
                best = log, dirty
        return best

    def _find_cleanable(
        self, log: Log, now_ms: TimestampMs, *, is_trusted_only: bool
    ) -> "DirtyRange | None":
        """The part of the log to clean; an error excludes only this log."""
        from millstream.storage.compaction import work

        try:
            return work.find_cleanable(log, now_ms, is_trusted_only=is_trusted_only)
        except OSError as error:
            if not isinstance(log.refused(error), StorageFailed):
                self._postpone(log.partition)
            return None
        except work.CORRUPT_ERRORS as error:
            self._uncleanable[log.partition] = log, str(error)
            self._report(work.corrupt(log.partition, str(error)))
            return None

    def _is_excluded(self, log: Log) -> bool:
        if log.maintenance is not None or log.failure is not None:  # it is being moved
            return True
        known = self._uncleanable.get(log.partition)
        if known is not None:
            if known[0] is log:
                return True
            del self._uncleanable[log.partition]  # the topic was created again
        return self._is_postponed(log.partition)

    def _is_postponed(self, what: TopicPartition | str) -> bool:
        until_s = self._postponed_until_s.get(what)
        if until_s is not None and self._clock.monotonic_s() >= until_s:
            del self._postponed_until_s[what]
            until_s = None
        return until_s is not None

    # -- after -----------------------------------------------------------------------------

    def _checkpointed(self, error: OperatingError | None) -> None:
        checkpoint_run, self._checkpoint_run = self._checkpoint_run, None
        if checkpoint_run is None or self._is_stopped:
            return
        log = checkpoint_run.log
        if error is not None:
            self._postpone(log.owner.path)
            self.run_once()
            return
        dirty = None
        if not log.is_released and not self._is_excluded(log):
            # Only up to the stored point, or a log that rolls all the time would never be cleaned.
            now_ms = TimestampMs(self._clock.wall_ms())
            dirty = self._find_cleanable(log, now_ms, is_trusted_only=True)
        if dirty is not None:
            self._clean(log, dirty)
        else:  # truncated or deleted meanwhile
            self._postpone(log.partition)
            self.run_once()

    def _ended(self, report: "CleaningReport") -> None:
        from millstream.storage.compaction.log_cleaning import CleaningEnd

        cleaning, self._cleaning = self._cleaning, None
        if cleaning is not None and report.end is CleaningEnd.CORRUPT:
            self._uncleanable[report.partition] = cleaning.log, report.detail
        if report.end in (CleaningEnd.DISK_FULL, CleaningEnd.NO_DESCRIPTORS):
            self._postpone(report.partition)
        self._report(report)
        if report.end in (CleaningEnd.CLEANED, CleaningEnd.CORRUPT, CleaningEnd.DISK_FULL):
            self.run_once()

    def _postpone(self, what: TopicPartition | str) -> None:
        self._postponed_until_s[what] = self._clock.monotonic_s() + RETRY_DELAY_S

    def _report(self, report: "CleaningReport") -> None:
        if self.on_report is not None:
            self.on_report(report)
