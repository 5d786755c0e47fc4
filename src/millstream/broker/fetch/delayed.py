"""Requests that are answered later: a fetch waits for enough bytes, a produce until it is
committed, a deletion until the followers have deleted, too.

None is a task or a future. A fetch and a deletion register with their partitions and are called
when one of them moves; a produce counts the callbacks of its partitions; one timer for all of them
expires what takes too long.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from millstream.broker.fetch.cursors import Cursor, Found
from millstream.broker.fetch.read import FetchReader
from millstream.broker.fetch.sessions import FetchRound
from millstream.broker.requests.context import Context
from millstream.broker.requests.request_memory import REQUEST_BYTES_MIN
from millstream.kernels.batches import HEADER_BYTES
from millstream.model.errors import OperatingError
from millstream.model.ids import Offset
from millstream.observe.logs import get_logger
from millstream.replication.partition import Partition
from millstream.replication.readable import ReadableReplica
from millstream.runtime.fatal import end_if_fatal

log = get_logger("millstream.broker.fetch.delayed")

_NAMED_BYTES: Final = 150
"""What a partition takes that a fetch names, which may name one many times."""
_JOINED_BYTES: Final = 120
"""What each that it waits on takes, in addition."""
_CURSOR_BYTES: Final = 430
"""And its position there, unless that is its session's."""

PARKED_COUNT_MIN: Final = 50
"""A fetch of fewer partitions is counted like any small request in flight."""

AnswerFetch = Callable[[Context, FetchReader], None]

ANY_RECORDS_BYTES: Final = HEADER_BYTES
"""A client that waits for no more than this waits for any batch: none is smaller."""


def parked_bytes(round_: FetchRound) -> int:
    """What a fetch that waits takes beyond the names in it: 600 to 700 bytes for each partition
    were measured.
    """
    cursor_bytes = _JOINED_BYTES + (_CURSOR_BYTES if round_.session is None else 0)
    return len(round_.params.partitions) * _NAMED_BYTES + len(round_.cursors) * cursor_bytes


def is_log_start_unsent(cursor: Cursor, log_start: int) -> bool:
    """Whether a follower has records that its leader deleted, and has not been sent the log start.

    A client may wait for that: DeleteRecords is answered when all replicas have deleted them.
    """
    return 0 <= cursor.log_start < log_start != cursor.sent_log_start


class DelayedFetch:
    """A fetch that waits for `min_bytes`, for an error, or for its timeout."""

    __slots__ = (
        "_answer",
        "_bytes_of",
        "_bytes_seen",
        "_context",
        "_deadlines",
        "_is_over",
        "_joined",
        "_min_bytes",
        "_reader",
    )

    def __init__(self, context: Context, reader: FetchReader, answer: AnswerFetch) -> None:
        self._context = context
        self._reader = reader
        self._answer = answer
        self._min_bytes = reader.min_bytes
        self._bytes_of: dict[Cursor, int] = {}
        self._bytes_seen = 0
        self._is_over = False
        self._joined: list[ReadableReplica] = []
        """Where it waits: the session may forget a partition meanwhile."""
        services = context.services
        self._deadlines = services.partitions.deadlines(services.timers)

    def join(self, cursors: Iterable[Cursor], found: Sequence[Found]) -> None:
        """Wait on these partitions; `found` is what was read of them in this moment."""
        if self._min_bytes > ANY_RECORDS_BYTES:
            for one in found:
                size = one.data.size_bytes
                if size:
                    self._bytes_seen += size
                    self._bytes_of[one.cursor] = size
        is_follower = self._reader.is_follower
        for cursor in cursors:
            replica = cursor.replica
            if replica is not None:
                waiting = replica.follower_readers if is_follower else replica.readers
                waiting[self] = cursor
                self._joined.append(replica)

    def start(self, *, max_wait_ms: int) -> None:
        """What was read was not enough."""
        self._deadlines.add(self, timeout_ms=max_wait_ms)
        round_, facts = self._reader.round, self._context.facts
        if len(round_.cursors) >= PARKED_COUNT_MIN or facts.bytes_in > REQUEST_BYTES_MIN:
            size = facts.bytes_in + parked_bytes(round_)
            self._context.peer.park(facts.number, size, self._drop)

    def progressed(self, mark: Any) -> None:
        """A partition moved, or has an error."""
        if not self._is_over and self._is_enough(mark):
            self._deadlines.note_over()
            self._finish()

    def expire(self) -> None:
        """Answer with what there is."""
        self._finish()

    def is_over(self) -> bool:
        """Also when the client is gone: then nothing waits for it any longer."""
        if not self._is_over and not self._context.peer.is_open:
            self.leave()
        return self._is_over

    def _is_enough(self, cursor: Cursor) -> bool:
        replica = cursor.replica
        if replica is None or not replica.is_usable:
            return True
        if self._reader.is_follower:
            if is_log_start_unsent(cursor, replica.slot.log_start):
                return True
            if replica.is_throttled and self._reader.is_quota_exceeded(replica):
                return False
        isolation = self._reader.isolation
        if replica.visible_end(isolation) <= cursor.fetch_offset:
            return False
        if self._min_bytes <= ANY_RECORDS_BYTES:
            return True
        size_max = max(0, cursor.max_bytes)
        try:
            data = replica.read(
                Offset(cursor.fetch_offset), size_max=size_max, isolation=isolation
            ).data
        except OperatingError:
            return True
        size = min(data.size_bytes, size_max)
        self._bytes_seen += size - self._bytes_of.get(cursor, 0)
        self._bytes_of[cursor] = size
        # Records that end with their segment: waiting brings no more.
        is_older = data.size_bytes > 0 and data.file is not replica.log.segments.active.log
        return is_older or self._bytes_seen >= self._min_bytes

    def leave(self) -> None:
        """Wait on nothing any more."""
        self._is_over = True
        is_follower = self._reader.is_follower
        for replica in self._joined:
            waiting = replica.follower_readers if is_follower else replica.readers
            waiting.pop(self, None)
        self._joined.clear()

    def _drop(self) -> None:
        """The client is gone. `Deadlines` finds that out later, and has this until then."""
        self.leave()
        self._deadlines.note_over()
        self._reader.forget()
        self._bytes_of.clear()

    def _finish(self) -> None:
        self.leave()
        context = self._context
        if not context.peer.is_open:
            return
        try:
            self._answer(context, self._reader)
        except Exception as error:  # noqa: BLE001 - called by another client's request
            end_if_fatal(error)
            lines, host = context.services.client_log, context.peer.client_host
            lines.error(log, "delayed fetch failed", client=host, error=error)
            context.close(f"FETCH failed: {error!r}")


class DelayedProduce:
    """A produce request of which some partitions have not answered yet."""

    __slots__ = ("_context", "_deadlines", "_finish", "_is_over", "_on_time_out", "waiting")

    def __init__(
        self, context: Context, finish: Callable[[], None], on_time_out: Callable[[], None]
    ) -> None:
        self._context = context
        self._finish = finish
        self._on_time_out = on_time_out
        """Fills in the error of the partitions that did not answer in time."""
        self.waiting = 0
        self._is_over = False
        services = context.services
        self._deadlines = services.partitions.deadlines(services.timers)

    def start(self, *, timeout_ms: int) -> None:
        """All partitions got the request and some will answer later."""
        self._deadlines.add(self, timeout_ms=max(0, timeout_ms))

    def one_done(self) -> None:
        """A partition that was waited for has answered."""
        self.waiting -= 1
        if self.waiting == 0 and not self._is_over:
            self._is_over = True
            self._deadlines.note_over()
            self._finish()

    def expire(self) -> None:
        """Answer as far as it is known."""
        self._is_over = True
        self._on_time_out()
        self._finish()

    def is_over(self) -> bool:
        return self._is_over


class DelayedDeleteRecords:
    """A DeleteRecords request of which followers still have some of the records."""

    __slots__ = ("_context", "_deadlines", "_finish", "_is_over", "_on_reached", "_targets")

    def __init__(
        self,
        context: Context,
        targets: dict[Partition, Offset],
        *,
        on_reached: Callable[[Partition], None],
        finish: Callable[[], None],
    ) -> None:
        """`on_reached` is called for each partition that is done or no longer led by this broker.

        `targets`: the offset that the low watermark of each partition must reach.
        """
        self._context = context
        self._targets = targets
        self._on_reached = on_reached
        self._finish = finish
        self._is_over = False
        services = context.services
        self._deadlines = services.partitions.deadlines(services.timers)

    def start(self, *, timeout_ms: int) -> None:
        """Wait for the followers' fetches."""
        for replica in self._targets:
            replica.low_watermark_waiters[self] = None
        self._deadlines.add(self, timeout_ms=max(0, timeout_ms))

    def low_watermark_moved(self, replica: Partition) -> None:
        if not self._take(replica) or self._targets:
            return
        self._is_over = True
        self._deadlines.note_over()
        self._answer()

    def _take(self, replica: Partition) -> bool:
        """Whether this partition need not be waited for any more."""
        target = self._targets.get(replica)
        if target is None or (replica.is_usable and replica.low_watermark < target):
            return False
        del self._targets[replica]
        replica.low_watermark_waiters.pop(self, None)
        self._on_reached(replica)
        return True

    def expire(self) -> None:
        """A follower may have died silently; then answer with the current state."""
        for replica in list(self._targets):
            self._take(replica)
        self._leave()
        self._answer()

    def is_over(self) -> bool:
        if not self._is_over and not self._context.peer.is_open:
            self._leave()
        return self._is_over

    def _leave(self) -> None:
        self._is_over = True
        for replica in self._targets:
            replica.low_watermark_waiters.pop(self, None)
        self._targets.clear()

    def _answer(self) -> None:
        if self._context.peer.is_open:
            self._finish()
