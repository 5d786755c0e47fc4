"""Fetch sessions (KIP-227): the partitions of a client are remembered, only changes are sent.

A consumer of a hundred partitions would otherwise name all of them in every request and get all
of them in every answer. This is the pure part: which partitions a request is about, what the
session's numbers must be, what is new to the client, and which sessions a full cache evicts.
Reading the partitions is done by `broker/fetch/read.py`.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.broker.fetch.request import (
    FINAL_SESSION_EPOCH,
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchParams,
    FetchPartition,
    TopicKey,
)
from millstream.kernels import fetch as kernel
from millstream.model.invariant import invariant
from millstream.model.limits import (
    FETCH_SESSION_PARTITIONS_MAX,
    FETCH_SESSIONS_PARTITIONS_MAX,
)
from millstream.replication.readable import ReadableReplica
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import StepGenerator, chunked
from millstream.storage.log.reader import ReadSlice
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.wire.errors import ErrorCode

SESSION_EPOCH_MAX: Final = 2**31 - 1
SESSION_ID_MAX: Final = 2**31 - 1

EVICTION_MS: Final = 120_000
"""Kafka's: one unused for longer may always be evicted, a younger one only for a privileged one."""

UNKNOWN_KEPT_MAX: Final = 1_000
"""Partitions of a session up to which it stays when most of them are unknown: topics were deleted,
or this broker does not have them yet."""

UNKNOWN: Final = -1

CursorKey = tuple[TopicKey, int]


if TYPE_CHECKING:

    class Cursor(kernel.Cursor):
        """The kernel's class, whose leader is a partition here."""

        leader: ReadableReplica | None

else:
    Cursor = kernel.Cursor


class Found(NamedTuple):
    """What reading at one cursor gave."""

    cursor: Cursor
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    aborted: Sequence[AbortedTransaction] | None
    """None: not requested."""
    data: ReadSlice
    diverging: tuple[int, int] | None = None
    """Epoch and end offset from which the client's log diverges from ours."""
    is_unknown: bool = False
    """The partition does not exist: no reason to answer before `max_wait_ms` is over."""
    preferred_replica: int = -1
    """The broker that is closer to the client, which reads there instead (KIP-392)."""


class FetchSession:
    """One client's partitions. Changed only by `FetchSessions`."""

    __slots__ = (
        "created_ms",
        "cursors",
        "epoch",
        "generation",
        "is_old",
        "is_privileged",
        "isolation_level",
        "last_used_ms",
        "rank",
        "session_id",
        "uses_topic_ids",
    )

    def __init__(
        self, session_id: int, params: FetchParams, cursors: dict[CursorKey, Cursor], now_ms: int
    ) -> None:
        self.session_id = session_id
        self.cursors = cursors
        self.is_privileged = params.is_follower
        self.uses_topic_ids = params.uses_topic_ids
        self.isolation_level = params.isolation_level
        self.created_ms = self.last_used_ms = now_ms
        self.epoch = next_epoch(INITIAL_SESSION_EPOCH)
        self.rank: Rank | None = None
        """Its position in the order of eviction, as it is in the lists."""
        self.is_old = False
        """Whether any new session may replace it, as it is in the lists."""
        self.generation = UNKNOWN
        """`Partitions.generation` when every cursor was last checked."""

    def note_read(self, cursor: Cursor) -> None:
        """Records were read there: the others come first until all had their turn.

        Without that a client whose limit is always used up by the first partitions would never see
        the rest.
        """
        cursors = self.cursors
        if cursors.pop(cursor.key, None) is not None:
            cursors[cursor.key] = cursor


Rank = tuple[bool, int, int]
"""Whether it is privileged, its size, its id: the lowest is evicted first."""


class FetchRound:
    """One request: the cursors it reads, and its session."""

    __slots__ = ("cursors", "error", "params", "session")

    def __init__(
        self,
        params: FetchParams,
        cursors: Collection[Cursor] = (),
        *,
        session: FetchSession | None = None,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        self.params = params
        self.cursors = cursors
        self.session = session
        """None: a full fetch, whether or not it requests a session."""
        self.error = error


class RoundAnswer(NamedTuple):
    """The content of the answer to a request."""

    error: ErrorCode
    session_id: int
    found: Sequence[Found]


def next_epoch(epoch: int) -> int:
    """The number of the request after this one; never 0 again, which would start a session."""
    if epoch < 0:
        return FINAL_SESSION_EPOCH
    return 1 if epoch == SESSION_EPOCH_MAX else epoch + 1


SESSION_PARTITION_BYTES: Final = 400
"""What a partition of a session takes in memory: a cursor and its entries in two mappings."""


class FetchSessions:
    """All sessions of a broker, at most `slots_max`, with at most `partitions_max` in all.

    A request that gets no session is served like any other, and its client sends all its partitions
    again: no session is the cheap answer whenever one would cost too much.
    """

    def __init__(
        self,
        *,
        slots_max: int,
        clock: Clock,
        randomness: Randomness,
        eviction_ms: int = EVICTION_MS,
        partitions_max: int = FETCH_SESSIONS_PARTITIONS_MAX,
        partitions_each_max: int = FETCH_SESSION_PARTITIONS_MAX,
    ) -> None:
        """`partitions_each_max`: of a consumer; a follower's session is limited by the sum only."""
        self._slots_max = slots_max
        self._partitions_max = partitions_max
        self._partitions_each_max = partitions_each_max
        self._clock = clock
        self._randomness = randomness
        self._eviction_ms = eviction_ms
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        """Least recently used first."""
        self._ranks_for_all: list[Rank] = []
        """Sessions that any new one may replace, lowest rank first."""
        self._ranks_for_privileged: list[Rank] = []
        self.partition_count = 0
        self.evictions = 0

    @property
    def size_bytes(self) -> int:
        """What the partitions of all sessions take in memory."""
        return self.partition_count * SESSION_PARTITION_BYTES

    def __len__(self) -> int:
        return len(self._sessions)

    # -- one request -----------------------------------------------------------------------

    def begin(self, params: FetchParams) -> FetchRound:
        """Which partitions the request is about; the session's state follows the request."""
        if params.session_epoch not in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            return self._begin_incremental(params)
        self._close(params.session_id)
        cursors: dict[CursorKey, Cursor] = {}
        _add_cursors(cursors, params.partitions)
        return FetchRound(params, cursors.values())

    def begin_steps(self, params: FetchParams) -> StepGenerator[FetchRound]:
        """The same for a request with very many partitions."""
        if params.session_epoch not in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            return self._begin_incremental(params)
        self._close(params.session_id)
        cursors: dict[CursorKey, Cursor] = {}
        for chunk in chunked(params.partitions):
            _add_cursors(cursors, chunk)
            yield None
        return FetchRound(params, cursors.values())

    def _close(self, session_id: int) -> None:
        """A request that is outside of any session ends the one that it names."""
        known = self._sessions.get(session_id) if session_id != NO_SESSION_ID else None
        if known is not None:
            self._remove(known)

    def _begin_incremental(self, params: FetchParams) -> FetchRound:
        session = self._sessions.get(params.session_id)
        if session is None:
            return FetchRound(params, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != params.session_epoch:
            return FetchRound(params, error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != params.uses_topic_ids:
            return FetchRound(params, error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if self._is_too_large(len(params.partitions), is_privileged=session.is_privileged):
            return self._give_up(session, params)
        cursors = session.cursors
        for partition in params.partitions:
            key = partition[:2]
            cursor = cursors.get(key)
            if cursor is None:
                cursors[key] = Cursor(partition)
            else:
                cursor.update(partition)
        for key in params.forgotten:
            cursors.pop(key, None)
        if not cursors:
            self._remove(session)
            return FetchRound(params)
        if params.isolation_level != session.isolation_level:
            session.isolation_level = params.isolation_level
            session.generation = UNKNOWN  # what each may see has changed
        session.epoch = next_epoch(session.epoch)
        self._touch(session, self._now_ms())
        if not self._has_room_for_growth(session):
            return self._give_up(session, params)
        return FetchRound(params, cursors.values(), session=session)

    def _give_up(self, session: FetchSession, params: FetchParams) -> FetchRound:
        """Its client starts again with all partitions, and gets a session if there is room."""
        self._remove(session)
        self.evictions += 1
        return FetchRound(params, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def finish(self, round_: FetchRound, found: Sequence[Found]) -> RoundAnswer:
        """What to send of what was found; a full fetch that requested a session gets one."""
        if round_.error:
            return RoundAnswer(round_.error, NO_SESSION_ID, ())
        session = round_.session
        if session is None:
            return RoundAnswer(ErrorCode.NONE, self._open(round_, found), found)
        if session.epoch != next_epoch(round_.params.session_epoch):
            # The same request came again, on another connection, while this one waited.
            return RoundAnswer(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, ())
        if len(found) > UNKNOWN_KEPT_MAX and _are_mostly_unknown(found, len(session.cursors)):
            if self._has(session):
                self._remove(session)
            return RoundAnswer(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, NO_SESSION_ID, ())
        return RoundAnswer(ErrorCode.NONE, session.session_id, _changes(session, found))

    def _open(self, round_: FetchRound, found: Sequence[Found]) -> int:
        params = round_.params
        if params.session_epoch != INITIAL_SESSION_EPOCH:
            return NO_SESSION_ID
        now_ms, size = self._now_ms(), len(round_.cursors)
        if size > UNKNOWN_KEPT_MAX and _are_mostly_unknown(found, size):
            return NO_SESSION_ID  # nothing would be saved: each of them is in every answer
        if not self._make_room(size, is_privileged=params.is_follower, now_ms=now_ms):
            return NO_SESSION_ID
        session_id = self._randomness.integer(1, SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = self._randomness.integer(1, SESSION_ID_MAX)
        for one in found:
            _note_sent(one)
        cursors = {cursor.key: cursor for cursor in round_.cursors}
        session = FetchSession(session_id, params, cursors, now_ms)
        self._sessions[session_id] = session
        self._touch(session, now_ms)
        return session_id

    # -- the cache -------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    def _has(self, session: FetchSession) -> bool:
        """Whether it is still there: others may close it or replace it while a request waits."""
        return self._sessions.get(session.session_id) is session

    def _is_too_large(self, size: int, *, is_privileged: bool) -> bool:
        """Whether no eviction would help."""
        return size > (self._partitions_max if is_privileged else self._partitions_each_max)

    def _make_room(self, size: int, *, is_privileged: bool, now_ms: int) -> bool:
        """For a new session of that size; False if none may be evicted for it."""
        if self._is_too_large(size, is_privileged=is_privileged):
            return False
        while (
            len(self._sessions) >= self._slots_max
            or self.partition_count + size > self._partitions_max
        ):
            if not self._evict(size, is_privileged, now_ms):
                return False
        return True

    def _has_room_for_growth(self, session: FetchSession) -> bool:
        """A session in use grows at the cost of the one unused for longest, if that is long."""
        size, now_ms = len(session.cursors), session.last_used_ms
        if self._is_too_large(size, is_privileged=session.is_privileged):
            return False
        while self.partition_count > self._partitions_max:
            oldest = next(iter(self._sessions.values()))
            if now_ms - oldest.last_used_ms <= self._eviction_ms:
                return False
            self._remove(oldest)
            self.evictions += 1
        return True

    def _evict(self, size: int, is_privileged: bool, now_ms: int) -> bool:  # noqa: FBT001
        """Make room for a session of that size, if one is worth less (Kafka's rules).

        The one unused for longest if that is long. Otherwise a follower's session may replace a
        consumer's, and a larger one may replace one that is no longer young.
        """
        if not self._sessions:
            return False
        victim = next(iter(self._sessions.values()))
        if now_ms - victim.last_used_ms <= self._eviction_ms:
            ranks = self._ranks_for_privileged if is_privileged else self._ranks_for_all
            if not ranks or (is_privileged, size, 0) < ranks[0]:
                return False
            victim = self._sessions[ranks[0][2]]
        self._remove(victim)
        self.evictions += 1
        return True

    def _touch(self, session: FetchSession, now_ms: int) -> None:
        """It was used: note when, and its rank if that changed."""
        self._sessions.move_to_end(session.session_id)
        session.last_used_ms = now_ms
        is_old = now_ms - session.created_ms > self._eviction_ms
        rank = (session.is_privileged, len(session.cursors), session.session_id)
        before = session.rank
        if before != rank:
            self._forget_rank(session)
            session.rank = rank
            self.partition_count += rank[1]
        elif is_old == session.is_old:
            return  # it is in the right lists
        session.is_old = is_old
        if not session.is_privileged or is_old:
            _insert(self._ranks_for_privileged, rank)
        if is_old:
            _insert(self._ranks_for_all, rank)

    def _remove(self, session: FetchSession) -> None:
        invariant(
            self._sessions.pop(session.session_id, None) is session,
            "I-37 a fetch session was removed twice",
            session_id=session.session_id,
        )
        self._forget_rank(session)

    def _forget_rank(self, session: FetchSession) -> None:
        rank = session.rank
        if rank is None:
            return
        session.rank = None
        self.partition_count -= rank[1]
        for ranks in (self._ranks_for_all, self._ranks_for_privileged):
            at = bisect_left(ranks, rank)
            if at < len(ranks) and ranks[at] == rank:
                del ranks[at]


def _insert(ranks: list[Rank], rank: Rank) -> None:
    at = bisect_left(ranks, rank)
    if at == len(ranks) or ranks[at] != rank:
        ranks.insert(at, rank)


def _add_cursors(cursors: dict[CursorKey, Cursor], partitions: Sequence[FetchPartition]) -> None:
    """In the order of the request; of a partition that is named twice the last one is used."""
    for partition in partitions:
        cursors[partition[:2]] = Cursor(partition)


def _are_mostly_unknown(found: Sequence[Found], size: int) -> bool:
    """Whether more than half of the partitions do not exist here."""
    return 2 * sum(one.is_unknown for one in found) > size


def _changes(session: FetchSession, found: Sequence[Found]) -> list[Found]:
    """What is new to the client; partitions with records move behind the others."""
    changed: list[Found] = []
    for one in found:
        cursor, size = one.cursor, one.data.size_bytes
        is_new = (
            size > 0
            or one.error != 0
            or one.high_watermark != cursor.sent_high_watermark
            or one.log_start != cursor.sent_log_start
            or one.diverging is not None
            or one.preferred_replica >= 0
        )
        if not is_new:
            continue
        changed.append(one)
        _note_sent(one)
        if size:
            session.note_read(cursor)
    return changed


def _note_sent(one: Found) -> None:
    # After an error they are unknown, so that the client gets them once it is over; so they are for
    # a client whose log diverges from ours: it truncates its log and uses nothing else.
    is_taken = one.diverging is None
    one.cursor.sent_high_watermark = one.high_watermark if is_taken else UNKNOWN
    one.cursor.sent_log_start = one.log_start
