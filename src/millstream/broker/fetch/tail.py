"""The most common Fetch by a short way: of a consumer without a session that has read one partition
to its end.

It comes once or twice for each record where few are written, and a consumer waits for its answer.
So it is read and answered, or left with its partition, in a few calls; `broker/fetch/read.py` and
`broker/fetch/delayed.py` do the same for every shape of request. Whatever is not as simple as that,
when the request comes or when it is woken, goes their way.
"""

from typing import Any, Final

from millstream.broker.fetch.delayed import ANY_RECORDS_BYTES, AnswerFetch
from millstream.broker.fetch.read import FIRST_MODERN, TAKEN_BYTES_MAX, FetchReader
from millstream.broker.fetch.request import FINAL_SESSION_EPOCH, NO_SESSION_ID, FetchAsk
from millstream.broker.fetch.sessions import Cursor, FetchRound
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
    """One such request. It is never read by the long way before it is over."""

    __slots__ = (
        "_answer",
        "_ask",
        "_bytes_max",
        "_context",
        "_cursor",
        "_deadlines",
        "_is_over",
        "_leader",
    )

    def __init__(
        self,
        context: Context,
        ask: FetchAsk,
        leader: Partition,
        answer: AnswerFetch,
        bytes_max: int,
    ) -> None:
        """`answer` reads and answers the long way."""
        self._context = context
        self._ask = ask
        self._leader = leader
        self._answer = answer
        self._bytes_max = bytes_max
        cursor = self._cursor = Cursor(ask.partitions[0])
        cursor.leader, cursor.slot = leader, leader.slot
        self._is_over = False

    def begin(self) -> bool:
        """Answer it or let it wait; False, and nothing done: it is not at the tail."""
        cursor = self._cursor
        size_max = min(cursor.max_bytes, self._ask.max_bytes, self._bytes_max)
        if size_max <= 0:
            return False
        if self._leader.slot.tail(cursor.fetch_offset, size_max) != NOTHING_NEW:
            return self._send()
        self._leader.readers[self] = None
        services = self._context.services
        self._deadlines = services.partitions.deadlines(services.timers)
        self._deadlines.add(self, timeout_ms=self._ask.max_wait_ms)
        return True

    def progressed(self, _mark: Any) -> None:
        """The partition moved, or has an error to tell."""
        if self._is_over:
            return
        try:
            if not self._finish():
                return
        except Exception as error:  # noqa: BLE001 - called by somebody else's request
            self._failed(error)
        self._deadlines.note_over()

    def expire(self) -> None:
        """Answer with what there is."""
        try:
            self._take_long_way()
        except Exception as error:  # noqa: BLE001 - others are due as well
            self._failed(error)

    def is_over(self) -> bool:
        """Also when the client is gone: then nothing waits for it any longer."""
        if not self._is_over and not self._context.peer.is_open:
            self._leave()
        return self._is_over

    @property
    def _isolation(self) -> Isolation:
        return Isolation.COMMITTED if self._ask.isolation_level else Isolation.HIGH_WATERMARK

    def _finish(self) -> bool:
        """Answer it if there is something to tell."""
        leader, cursor = self._leader, self._cursor
        is_simple = is_as_claimed(leader, cursor.current_leader_epoch)
        if not self._context.peer.is_open or (is_simple and self._send()):
            self._leave()
        elif leader.is_usable and leader.visible_end(self._isolation) <= cursor.fetch_offset:
            return False
        else:
            self._take_long_way()
        return True

    def _send(self) -> bool:
        context, ask = self._context, self._ask
        cursor = self._cursor
        found = tail_frame(
            ask.version,
            context.facts.correlation_id,
            NO_SESSION_ID,
            cursor,
            min(cursor.max_bytes, ask.max_bytes, self._bytes_max, TAKEN_BYTES_MAX),
            ask.isolation_level != 0,
            False,  # no follower
        )
        if found is None:
            return False
        frame, record_bytes = found
        self._leader.bytes_out += record_bytes
        context.services.answering.answer_frame(
            context, (frame,), len(frame) - SIZE_BYTES, error_count=0
        )
        return True

    def _leave(self) -> None:
        self._is_over = True
        self._leader.readers.pop(self, None)

    def _take_long_way(self) -> None:
        self._leave()
        context = self._context
        if not context.peer.is_open:
            return
        reader = FetchReader(
            context.services.partitions,
            FetchRound(self._ask, (self._cursor,)),
            bytes_max=self._bytes_max,
        )
        self._answer(context, reader)

    def _failed(self, error: Exception) -> None:
        self._leave()
        log.error("delayed fetch failed", error=error)
        self._context.close(f"FETCH failed: {error!r}")


def is_as_claimed(leader: Partition, epoch: int) -> bool:
    """Whether it can be read, and is led in the epoch that the client believes in, if in any."""
    return epoch in (-1, leader.leader_epoch) and leader.is_usable


def leader_of(context: Context, ask: FetchAsk) -> Partition | None:
    """The partition of a request that may be served here; None: it takes the long way."""
    if (
        ask.session_epoch != FINAL_SESSION_EPOCH
        or len(ask.partitions) != 1
        or ask.session_id != NO_SESSION_ID
        or ask.version < FIRST_MODERN
        or ask.replica_id >= 0
        or ask.rack_id
        or not 0 < ask.min_bytes <= ANY_RECORDS_BYTES
        or ask.max_wait_ms <= 0
    ):
        return None
    topic, index, claimed_epoch, _, last_fetched_epoch, *_ = ask.partitions[0]
    if last_fetched_epoch >= 0:
        return None
    leader = context.services.partitions.find((topic, index))
    return leader if leader is not None and is_as_claimed(leader, claimed_epoch) else None
