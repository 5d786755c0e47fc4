"""Fetch sessions (KIP-227): the partitions of a client are remembered, only changes are sent.

A consumer of a hundred partitions would otherwise name all of them in every request and get all
of them in every answer. This is the pure part: which partitions a request is about, what the
session's numbers must be, what is new to the client, and which sessions a full cache evicts.
Reading the partitions is done by `broker/fetch/read.py`.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from millstream.broker.fetch.cursors import (
    UNKNOWN,
    Cursor,
    CursorKey,
    Found,
    add_cursors,
    count_unknown,
    note_all_sent,
    note_sent,
    update_cursors,
)
from millstream.broker.fetch.request import (
    FINAL_SESSION_EPOCH,
    FIRST_WITH_TOPIC_IDS,
    INITIAL_SESSION_EPOCH,
    NO_SESSION_ID,
    FetchParams,
)
from millstream.model.invariant import invariant
from millstream.model.limits import (
    FETCH_SESSION_PARTITIONS_MAX,
    FETCH_SESSIONS_PARTITIONS_MAX,
)
from millstream.runtime.clock import Clock
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import StepGenerator, YieldCounter, chunked
from millstream.wire.errors import ErrorCode

SESSION_EPOCH_MAX: Final = 2**31 - 1
SESSION_ID_MAX: Final = 2**31 - 1

EVICTION_MS: Final = 120_000
"""Kafka's: one unused for longer may always be evicted, a younger one only for a privileged one."""

UNKNOWN_KEPT_MAX: Final = 1_000
"""Partitions of a session up to which it stays when most of them are unknown: topics were deleted,
or this broker does not have them yet."""


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
        known = self.cursors.pop(cursor.key, None)
        if known is not None:
            self.cursors[cursor.key] = known


Rank = tuple[bool, int, int]
"""Whether it is privileged, its size, its id: the lowest is evicted first."""


class FetchRound:
    """One request: the cursors it reads, and its session."""

    __slots__ = ("by_key", "cursors", "error", "params", "session")

    def __init__(
        self,
        params: FetchParams,
        cursors: Collection[Cursor] = (),
        *,
        by_key: dict[CursorKey, Cursor] | None = None,
        session: FetchSession | None = None,
        error: ErrorCode = ErrorCode.NONE,
    ) -> None:
        """`by_key`: the cursors of a request that may become a session."""
        self.params = params
        self.cursors = cursors
        self.by_key = by_key
        self.session = session
        """None: a full fetch, whether or not it requests a session."""
        self.error = error

    def drop_steps(self) -> StepGenerator[None]:
        """Free the cursors of a full fetch that was answered and has not become a session."""
        pace = YieldCounter()
        while self.by_key:
            self.by_key.popitem()
            if pace.is_due():
                yield None


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
        add_cursors(cursors, params.partitions)
        return FetchRound(params, cursors.values(), by_key=cursors)

    def begin_steps(self, params: FetchParams) -> StepGenerator[FetchRound]:
        """The same for a request with very many partitions, or that forgets very many."""
        if params.session_epoch not in (INITIAL_SESSION_EPOCH, FINAL_SESSION_EPOCH):
            return (yield from self._begin_incremental_steps(params))
        self._close(params.session_id)
        cursors: dict[CursorKey, Cursor] = {}
        for chunk in chunked(params.partitions):
            add_cursors(cursors, chunk)
            yield None
        return FetchRound(params, cursors.values(), by_key=cursors)

    def _close(self, session_id: int) -> None:
        """A request that is outside of any session ends the one that it names."""
        known = self._sessions.get(session_id) if session_id != NO_SESSION_ID else None
        if known is not None:
            self._remove(known)

    def _begin_incremental(self, params: FetchParams) -> FetchRound:
        session = self._session_of(params)
        if isinstance(session, FetchRound):
            return session
        cursors = session.cursors
        if params.partitions:
            update_cursors(cursors, params.partitions)
        for key in params.forgotten:
            cursors.pop(key, None)
        return self._round_of(session, params)

    def _begin_incremental_steps(self, params: FetchParams) -> StepGenerator[FetchRound]:
        session = self._session_of(params)
        if isinstance(session, FetchRound):
            return session
        for chunk in chunked(params.partitions):
            update_cursors(session.cursors, chunk)
            yield None
        for keys in chunked(params.forgotten):
            for key in keys:
                session.cursors.pop(key, None)
            yield None
        if not self._has(session):  # it was closed meanwhile, or gave way to another one
            return FetchRound(params, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return self._round_of(session, params)

    def _session_of(self, params: FetchParams) -> FetchSession | FetchRound:
        """The session that the request continues, or the round of one that continues none.

        Its number is used up with that: the same request cannot come in between two steps of it.
        """
        session = self._sessions.get(params.session_id)
        if session is None:
            return FetchRound(params, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != params.session_epoch:
            return FetchRound(params, error=ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != (params.version >= FIRST_WITH_TOPIC_IDS):
            return FetchRound(params, error=ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        size = len(params.partitions)
        if size > self._partitions_each_max and self._is_too_large(
            size, is_privileged=session.is_privileged
        ):
            return self._give_up(session, params)
        if params.isolation_level != session.isolation_level:
            session.isolation_level = params.isolation_level
            session.generation = UNKNOWN  # what each may see has changed
        session.epoch = next_epoch(session.epoch)
        return session

    def _round_of(self, session: FetchSession, params: FetchParams) -> FetchRound:
        """For a session that now has the partitions that the request leaves it."""
        cursors = session.cursors
        if not cursors:
            self._remove(session)
            return FetchRound(params)
        self._touch(session, self._now_ms())
        if (
            len(cursors) > self._partitions_each_max or self.partition_count > self._partitions_max
        ) and not self._has_room_for_growth(session):
            return self._give_up(session, params)
        return FetchRound(params, cursors.values(), session=session)

    def _give_up(self, session: FetchSession, params: FetchParams) -> FetchRound:
        """Its client starts again with all partitions, and gets a session if there is room."""
        self._remove(session)
        self.evictions += 1
        return FetchRound(params, error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def finish(self, round_: FetchRound, found: Sequence[Found]) -> RoundAnswer:
        """What to send of what was found; a full fetch that requested a session gets one."""
        session = round_.session
        if session is None:
            return RoundAnswer(round_.error, self._open(round_, found), found)
        if session.epoch != next_epoch(round_.params.session_epoch):
            return _superseded(session)
        if len(found) > UNKNOWN_KEPT_MAX and 2 * count_unknown(found) > len(session.cursors):
            return self._drop(session)
        return RoundAnswer(ErrorCode.NONE, session.session_id, _changes(session, found))

    def finish_steps(
        self, round_: FetchRound, found: Sequence[Found], unknown_count: int
    ) -> StepGenerator[RoundAnswer]:
        """The same for very many, of which so many partitions do not exist."""
        session = round_.session
        if session is None:
            session_id = NO_SESSION_ID
            if self._may_open(round_, unknown_count):
                for chunk in chunked(found):
                    note_all_sent(chunk)
                    yield None
                session_id = self._add(round_)
            return RoundAnswer(round_.error, session_id, found)
        if session.epoch != next_epoch(round_.params.session_epoch):
            return _superseded(session)
        if len(found) > UNKNOWN_KEPT_MAX and 2 * unknown_count > len(session.cursors):
            return self._drop(session)
        changed: list[Found] = []
        for chunk in chunked(found):
            changed += _changes(session, chunk)
            yield None
        return RoundAnswer(ErrorCode.NONE, session.session_id, changed)

    def _drop(self, session: FetchSession) -> RoundAnswer:
        """Most of its partitions do not exist any more."""
        if self._has(session):
            self._remove(session)
        return RoundAnswer(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, NO_SESSION_ID, ())

    def _open(self, round_: FetchRound, found: Sequence[Found]) -> int:
        if round_.params.session_epoch != INITIAL_SESSION_EPOCH:
            return NO_SESSION_ID
        if not self._may_open(round_, count_unknown(found)):
            return NO_SESSION_ID
        note_all_sent(found)
        return self._add(round_)

    def _may_open(self, round_: FetchRound, unknown_count: int) -> bool:
        params, size = round_.params, len(round_.cursors)
        if params.session_epoch != INITIAL_SESSION_EPOCH:
            return False
        if size > UNKNOWN_KEPT_MAX and 2 * unknown_count > size:
            return False  # nothing would be saved: each of them is in every answer
        return not self._is_too_large(size, is_privileged=params.is_follower)

    def _add(self, round_: FetchRound) -> int:
        """The new session's id; NO_SESSION_ID if there is no room for it."""
        params, cursors, now_ms = round_.params, round_.by_key, self._now_ms()
        if cursors is None or not self._make_room(
            len(cursors), is_privileged=params.is_follower, now_ms=now_ms
        ):
            return NO_SESSION_ID
        session_id = self._randomness.integer(1, SESSION_ID_MAX)
        while session_id in self._sessions:
            session_id = self._randomness.integer(1, SESSION_ID_MAX)
        session = FetchSession(session_id, params, cursors, now_ms)
        self._sessions[session_id] = session
        self._touch(session, now_ms)
        return session_id

    # -- the cache -------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int(self._clock.monotonic_s() * 1000)

    def _has(self, session: FetchSession) -> bool:
        """Whether it is still there: others may close it or replace it while a request of it waits,
        or is served in steps.
        """
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


def _superseded(session: FetchSession) -> RoundAnswer:
    """The same request came again, on another connection, while this one waited."""
    return RoundAnswer(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, ())


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
        note_sent(one)
        if size:
            session.note_read(cursor)
    return changed
