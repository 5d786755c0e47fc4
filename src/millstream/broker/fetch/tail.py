"""The fast path of the most common Fetch: a consumer without a session that has read one partition
to its end.

It comes once or twice for each record where few are written, and a consumer waits for its answer.
So it is read and answered, or left with its partition, in a few calls; `broker/fetch/read.py` and
`broker/fetch/delayed.py` do the same for every shape of request. A request that is not that simple,
when it comes or when it is woken, takes the slow path through them.
"""

from typing import Any, Final

from millstream.broker.fetch.cursors import Cursor
from millstream.broker.fetch.delayed import ANY_RECORDS_BYTES, AnswerFetch
from millstream.broker.fetch.read import FIRST_MODERN, TAKEN_BYTES_MAX, FetchReader
from millstream.broker.fetch.request import FINAL_SESSION_EPOCH, NO_SESSION_ID, FetchParams
from millstream.broker.fetch.sessions import FetchRound
from millstream.broker.requests.context import Context
from millstream.kernels.fetch import tail_frame
from millstream.kernels.slots import NOTHING_NEW
from millstream.observe.logs import get_logger
from millstream.replication.partition import Partition
from millstream.storage.log.reader import Isolation

log = get_logger("millstream.broker.fetch.tail")

SIZE_BYTES: Final = 4
"""In front of a frame, and not counted in it."""


class TailFetch:
    """One such request. It takes the slow path at most once, at its end."""

    __slots__ = (
        "_answer",
        "_bytes_max",
        "_context",
        "_cursor",
        "_deadlines",
        "_is_over",
        "_leader",
        "_params",
    )

    def __init__(
        self,
        context: Context,
        params: FetchParams,
        leader: Partition,
        answer: AnswerFetch,
        bytes_max: int,
    ) -> None:
        """`answer` reads and answers on the slow path."""
        self._context = context
        self._params = params
        self._leader = leader
        self._answer = answer
        self._bytes_max = bytes_max
        cursor = self._cursor = Cursor(params.partitions[0])
        cursor.replica, cursor.slot = leader, leader.slot
        self._is_over = False

    def begin(self) -> bool:
        """Answer it or let it wait; False, with nothing done, if it is not at the tail."""
        cursor = self._cursor
        size_max = min(cursor.max_bytes, self._params.max_bytes, self._bytes_max)
        if size_max <= 0:
            return False
        if self._leader.slot.tail(cursor.fetch_offset, size_max) != NOTHING_NEW:
            return self._send()
        self._leader.readers[self] = None
        services = self._context.services
        self._deadlines = services.partitions.deadlines(services.timers)
        self._deadlines.add(self, timeout_ms=self._params.max_wait_ms)
        return True

    def progressed(self, _mark: Any) -> None:
        """The partition moved, or has an error."""
        if self._is_over:
            return
        try:
            if not self._finish():
                return
        except Exception as error:  # noqa: BLE001 - called by another client's request
            self._failed(error)
        self._deadlines.note_over()

    def expire(self) -> None:
        """Answer with what there is."""
        try:
            self._take_slow_path()
        except Exception as error:  # noqa: BLE001 - others are due as well
            self._failed(error)

    def is_over(self) -> bool:
        """Also when the client is gone: then nothing waits for it any longer."""
        if not self._is_over and not self._context.peer.is_open:
            self._leave()
        return self._is_over

    @property
    def _isolation(self) -> Isolation:
        return Isolation.COMMITTED if self._params.isolation_level else Isolation.HIGH_WATERMARK

    def _finish(self) -> bool:
        """Answer it if there are records or an error."""
        leader, cursor = self._leader, self._cursor
        is_simple = is_readable_in_epoch(leader, cursor.current_leader_epoch)
        if not self._context.peer.is_open or (is_simple and self._send()):
            self._leave()
        elif leader.is_usable and leader.visible_end(self._isolation) <= cursor.fetch_offset:
            return False
        else:
            self._take_slow_path()
        return True

    def _send(self) -> bool:
        context, params = self._context, self._params
        cursor = self._cursor
        found = tail_frame(
            params.version,
            context.facts.correlation_id,
            NO_SESSION_ID,
            cursor,
            min(cursor.max_bytes, params.max_bytes, self._bytes_max, TAKEN_BYTES_MAX),
            params.isolation_level != 0,
            False,  # not a follower
        )
        if found is None:
            return False
        frame, record_bytes = found
        self._leader.bytes_out += record_bytes
        context.services.responder.answer_frame(
            context, (frame,), len(frame) - SIZE_BYTES, error_count=0
        )
        return True

    def _leave(self) -> None:
        self._is_over = True
        self._leader.readers.pop(self, None)

    def _take_slow_path(self) -> None:
        self._leave()
        context = self._context
        if not context.peer.is_open:
            return
        reader = FetchReader(
            context.services.partitions,
            FetchRound(self._params, (self._cursor,)),
            bytes_max=self._bytes_max,
        )
        self._answer(context, reader)

    def _failed(self, error: Exception) -> None:
        self._leave()
        peer, lines = self._context.peer, self._context.services.client_log
        lines.error(log, "delayed fetch failed", client=peer.client_host, error=error)
        self._context.close(f"FETCH failed: {error!r}")


def is_readable_in_epoch(leader: Partition, epoch: int) -> bool:
    """Whether the partition is usable, and led in the epoch that the client names, if any."""
    return epoch in (-1, leader.leader_epoch) and leader.is_usable


def leader_of(context: Context, params: FetchParams) -> Partition | None:
    """The partition of a request on the fast path; None: it takes the slow path."""
    if (
        params.session_epoch != FINAL_SESSION_EPOCH
        or len(params.partitions) != 1
        or params.session_id != NO_SESSION_ID
        or params.version < FIRST_MODERN
        or params.replica_id >= 0
        or params.rack_id
        or not 0 < params.min_bytes <= ANY_RECORDS_BYTES
        or params.max_wait_ms <= 0
    ):
        return None
    topic, index, claimed_epoch, _, last_fetched_epoch, *_ = params.partitions[0]
    if last_fetched_epoch >= 0:
        return None
    leader = context.services.partitions.find((topic, index))
    return leader if leader is not None and is_readable_in_epoch(leader, claimed_epoch) else None
