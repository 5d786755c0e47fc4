"""The checkpoint before a cleaning of segments that a start after a crash would not trust yet.

A cleaned segment is trusted after a crash, so what it replaces must have been trusted too: synced
with its indexes, and below the recovery point in the file. The timer of the checkpoints would do
that within a minute; the cleaner's own back-off is shorter. So it requests both itself: first the
flush, then the file, and only what is below the stored point by then is cleaned.
"""

from collections.abc import Callable, Iterable
from functools import partial

from millstream.model.errors import OperatingError
from millstream.model.ids import Offset
from millstream.runtime.background import Background, BackgroundFullError, Outcome
from millstream.storage import names
from millstream.storage.flush import FlushDone
from millstream.storage.log.log import Log
from millstream.storage.log_steps import make_current_check

Flush = Callable[[Log, FlushDone], None]


class RecoveryPointCheckpoint:
    """Flushes one log and stores its recovery point; owned by the thread of the logs."""

    def __init__(
        self,
        log: Log,
        all_logs: Iterable[Log],
        *,
        flush: Flush,
        background: Background,
        on_end: Callable[[OperatingError | None], None],
    ) -> None:
        self.log = log
        self._all_logs = all_logs
        self._flush = flush
        self._background = background
        self._on_end = on_end
        self._is_stalled = False
        self._is_stopped = False

    def start(self, end_offset: Offset) -> None:
        """Begin; everything below `end_offset` must become trusted."""
        if self.log.recovery_point < end_offset:
            self._flush(self.log, self._flushed)
        else:
            self._store()  # a roll makes a flush due, which is mostly over by now

    def resume(self) -> None:
        """Try again what the background had no room for."""
        if self._is_stalled:
            self._store()

    def stop(self) -> None:
        """Begin nothing more."""
        self._is_stopped = True

    def _flushed(self, error: OperatingError | None) -> None:
        if error is not None:
            self._on_end(error)
        else:
            self._store()

    def _store(self) -> None:
        """Store those of all compacted logs of the directory: it is one file, and they are next."""
        if self._is_stopped:
            return
        owner = self.log.owner
        logs = [one for one in self._all_logs if one.owner is owner and one.config.cleanup_compact]
        points = {one.partition: one.recovery_start for one in logs}
        work = partial(owner.store_current, names.RECOVERY_POINTS, points, make_current_check(logs))
        self._is_stalled = False
        try:
            self._background.submit(
                work, self._stored, name=f"compaction of {self.log.partition}: store"
            )
        except BackgroundFullError:
            self._is_stalled = True

    def _stored(self, outcome: Outcome[None]) -> None:
        if outcome.error is None or isinstance(outcome.error, OperatingError):
            self._on_end(outcome.error)
        else:
            raise outcome.error
