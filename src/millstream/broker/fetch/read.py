"""Reading for one Fetch request: which partitions are read, how far, and how many bytes.

Limits follow KIP-74: partitions are read in order until the request's limit is used up, and the
first that has records returns at least one batch, however large, so that a client always
advances.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from millstream.broker.fetch.cursors import UNKNOWN, Cursor, Found
from millstream.broker.fetch.request import INITIAL_SESSION_EPOCH, NO_SESSION_ID, FetchParams
from millstream.broker.fetch.sessions import FetchRound, FetchSession, next_epoch
from millstream.broker.requests.context import RequestFacts
from millstream.broker.requests.error_codes import code_of
from millstream.broker.requests.services import Services
from millstream.kernels.compression import Codec
from millstream.kernels.fetch import cursors_to_read, cursors_to_read_for_follower, tail_frame
from millstream.model.errors import (
    CorruptRecords,
    InconsistentTopicId,
    OffsetOutOfRange,
    OperatingError,
    StorageFailed,
    UnknownPartition,
    UnknownTopicId,
)
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from millstream.model.invariant import invariant
from millstream.model.limits import KIB
from millstream.replication.errors import OffsetNotAvailable
from millstream.replication.leader import FollowerFetch
from millstream.replication.partition import Partition
from millstream.replication.partitions import Partitions
from millstream.replication.readable import ReadableReplica
from millstream.storage.log.log import Log
from millstream.storage.log.reader import EMPTY_SLICE, Isolation
from millstream.wire.errors import ErrorCode

SelectReplica = Callable[[Partition, Offset], int]

TAKEN_BYTES_MAX: Final = 16 * KIB
"""Records of up to this size are copied into the answer instead of sent as a file range."""

_FIRST_WITH_STORAGE_ERROR: Final = 6
FIRST_MODERN: Final = 10
"""The first version with zstd: from here on no answer depends on the version."""


def reader_of(services: Services, round_: FetchRound, bytes_max: int) -> "FetchReader":
    """For a request that was just begun; `bytes_max` is the broker's limit."""
    select = None
    if round_.params.rack_id:
        # Local import: few clients have a rack, and a start loads little.
        from millstream.broker.fetch.closest_replica import replica_selector

        select = replica_selector(services, round_.params)
    return FetchReader(services.partitions, round_, bytes_max=bytes_max, select=select)


class FetchReader:
    """Reads the partitions of one request; again, when it had to wait."""

    __slots__ = (
        "_bytes_left",
        "_is_first",
        "_is_modern",
        "_is_special",
        "_params",
        "_partitions",
        "_select",
        "bytes_max",
        "due",
        "has_older_segment",
        "is_follower",
        "isolation",
        "round",
        "throttle_wait_s",
    )

    def __init__(
        self,
        partitions: Partitions,
        round_: FetchRound,
        *,
        bytes_max: int,
        select: SelectReplica | None = None,
    ) -> None:
        """`select`: the broker from which the client should read a partition instead, or -1."""
        params = round_.params
        self._select = select
        self._partitions = partitions
        self._params = params
        self.round = round_
        self.bytes_max = max(0, min(params.max_bytes, bytes_max))
        self._bytes_left = self.bytes_max
        self._is_first = True
        """No records so far: the next batch is sent even when it is larger than the limits."""
        self.isolation = _isolation(params)
        self.is_follower = is_follower = params.is_follower
        self.due = cursors_to_read_for_follower if is_follower else cursors_to_read
        """Of any cursors those that may have something new."""
        self._is_special = is_follower or params.rack_id != ""
        self._is_modern = params.version >= FIRST_MODERN and not is_follower
        self.has_older_segment = False
        """Whether records end with their segment: waiting for more would bring none."""
        self.throttle_wait_s = 0.0
        """How long the throttle delays records of a follower that catches up."""

    @property
    def min_bytes(self) -> int:
        """What the client waits for; no more than one answer may have."""
        return min(self._params.min_bytes, self.bytes_max)

    def forget(self) -> None:
        """No client waits for the answer any more."""
        self._params = self._params._replace(partitions=[], forgotten=[])
        self.round = FetchRound(self._params)

    def begin(self) -> list[Cursor]:
        """The cursors to read, in this order: all but those that certainly have nothing new."""
        session = self.round.session
        if session is not None and session.generation != self._partitions.generation:
            self._find_again(session)
        self._bytes_left, self._is_first = self.bytes_max, True
        return self.due(self.round.cursors)

    def begin_chunks(self) -> Sequence[Cursor]:
        """All cursors, for a caller that reads those of them that are `due` chunk by chunk."""
        session = self.round.session
        if session is not None and session.generation != self._partitions.generation:
            self._find_again(session)
        self._bytes_left, self._is_first = self.bytes_max, True
        return list(self.round.cursors)

    def _find_again(self, session: FetchSession) -> None:
        """All at once, which takes two milliseconds for 50,000: it is noted for the session as a
        whole.
        """
        session.generation = self._partitions.generation
        forget_replicas(self.round.cursors)

    def read(self, cursors: Iterable[Cursor]) -> list[Found]:
        """Read these, after all that were read since `begin`."""
        return [self.read_next(cursor) for cursor in cursors]

    def read_next(self, cursor: Cursor) -> Found:
        one = self._read_one(cursor)
        size = one.data.size_bytes
        if size:
            self._is_first = False
            self._bytes_left = max(0, self._bytes_left - size)
        return one

    def tail_frame(self, facts: RequestFacts) -> bytes | None:
        """The whole answer, if it is the newest records of one partition and nothing else.

        That is what most fetches wait for, and a consumer, or with a follower a producer, waits
        for this answer: it costs only a few calls. Only for a request that waited, and was read
        once before. None: nothing was noted as sent, call `read`.
        """
        round_, params = self.round, self._params
        session, session_id = round_.session, NO_SESSION_ID
        if session is not None:
            if session.generation != self._partitions.generation or session.epoch != next_epoch(
                params.session_epoch
            ):
                return None
            session_id = session.session_id
        elif round_.error or params.session_epoch == INITIAL_SESSION_EPOCH:
            return None
        is_follower, cursors = self.is_follower, round_.cursors
        changed = self.due(cursors)
        if len(changed) != 1 or not (self._is_modern or is_follower):
            return None
        cursor = changed[0]
        replica = cursor.replica
        if replica is None or not replica.is_usable:
            return None
        if not (_is_already_checked if is_follower else _needs_no_epoch_check)(cursor, replica):
            return None
        found = tail_frame(
            facts.version,
            facts.correlation_id,
            session_id,
            cursor,
            min(cursor.max_bytes, self.bytes_max, TAKEN_BYTES_MAX),
            self.isolation is Isolation.COMMITTED,
            is_follower,
        )
        if found is None:
            return None
        replica.count_out(found[1], is_follower=is_follower)
        if session is not None:
            session.note_read(cursor)
        return found[0]

    def _read_one(self, cursor: Cursor) -> Found:
        replica = cursor.replica
        if replica is None:
            try:
                replica = cursor.replica = self._find(cursor)
                cursor.slot = replica.slot
            except (UnknownPartition, UnknownTopicId) as error:
                code = code_of(error)
                return Found(cursor, code, -1, -1, -1, (), EMPTY_SLICE, is_unknown=True)
            except OperatingError as error:
                return self.failure(cursor, error)
        try:
            return self._read_replica(cursor, replica)
        except OperatingError as error:
            return self.failure(cursor, error)

    def _read_replica(self, cursor: Cursor, replica: ReadableReplica) -> Found:
        if cursor.current_leader_epoch not in (-1, replica.leader_epoch):
            replica.check_leader_epoch(cursor.current_leader_epoch)
        if self._is_special:
            found = self._read_as_leader(cursor, replica)
            if found is not None:
                return found
        if cursor.last_fetched_epoch >= 0:
            diverging = _divergence(replica, cursor)
            if diverging is not None:
                return _diverged(cursor, replica, diverging)
        size_max = max(0, min(cursor.max_bytes, self._bytes_left))
        slot = replica.slot
        if slot.is_decided and self._is_modern and replica.is_usable:
            fresh = replica.tail(cursor.fetch_offset, size_max)
            if fresh is not None:
                end = cursor.visible_end = slot.high_watermark
                aborted = () if self.isolation is Isolation.COMMITTED else None
                return Found(cursor, 0, end, end, slot.log_start, aborted, fresh)
        log = replica.log
        if self._params.version < FIRST_MODERN and log.config.compression is Codec.ZSTD:
            code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
            return Found(cursor, code, -1, -1, -1, (), EMPTY_SLICE)
        result = log.read(Offset(cursor.fetch_offset), size_max=size_max, isolation=self.isolation)
        data, is_committed = result.data, self.isolation is Isolation.COMMITTED
        cursor.visible_end = result.last_stable_offset if is_committed else result.high_watermark
        if data.size_bytes:
            if not self._is_first and data.size_bytes > size_max:
                data = EMPTY_SLICE
            elif data.file is not log.segments.active.log:
                self.has_older_segment = True
        return Found(
            cursor,
            0,
            result.high_watermark,
            result.last_stable_offset,
            result.log_start,
            result.aborted if is_committed else None,
            data,
        )

    def _find(self, cursor: Cursor) -> ReadableReplica:
        topic, index = cursor.key
        replica = self._partitions.find(cursor.key)
        if replica is not None:
            cursor.name = replica.partition.topic
            return replica
        # A client without a rack that asks a follower has old metadata, and must get the error.
        is_leaders = self.is_follower or not self._params.rack_id
        look_up = self._partitions.get if is_leaders else self._partitions.readable
        if isinstance(topic, str):
            cursor.name = topic
            return look_up((topic, index))
        if cursor.name is None:
            cursor.name = self._partitions.name_of(topic)
        found = look_up((cursor.name, index))
        if found.topic_id.bytes != topic:
            # The session was opened for a deleted topic of that name; this is another one.
            raise InconsistentTopicId(f"{found.partition} has id {found.topic_id} now")
        return found

    def _read_as_leader(self, cursor: Cursor, replica: ReadableReplica) -> Found | None:
        """What only a leader does; None: read it as for any consumer."""
        if not isinstance(replica, Partition):
            if cursor.fetch_offset > replica.slot.log_end:
                # It only lags: "out of range" would make the client reset its position.
                raise OffsetNotAvailable(replica.partition)
            return None
        if not self.is_follower:
            return self._redirect(cursor, replica)
        self._check_follower(cursor, replica)
        if cursor.last_fetched_epoch >= 0:
            diverging = _divergence(replica, cursor)
            if diverging is not None:
                return _diverged(cursor, replica, diverging)
        size_max = max(0, min(cursor.max_bytes, self._bytes_left))
        return self._read_for_follower(cursor, replica, size_max)

    def _redirect(self, cursor: Cursor, replica: Partition) -> Found | None:
        """Redirect a consumer to a replica that is closer to it, if there is one."""
        preferred = self._select(replica, Offset(cursor.fetch_offset)) if self._select else -1
        if preferred < 0:
            return None
        high = replica.high_watermark
        cursor.visible_end = UNKNOWN
        return Found(
            cursor,
            0,
            high,
            replica.last_stable_offset,
            replica.log_start,
            None,
            EMPTY_SLICE,
            preferred_replica=preferred,
        )

    def _check_follower(self, cursor: Cursor, replica: Partition) -> None:
        params = self._params
        replica.check_follower(
            BrokerId(params.replica_id),
            BrokerEpoch(params.replica_epoch),
            named_epoch=cursor.current_leader_epoch,
        )

    def _read_for_follower(self, cursor: Cursor, replica: Partition, size_max: int) -> Found:
        """Everything up to the log's end. A fetch from an offset acknowledges what is before it:
        that is noted first, so that the answer has the resulting high watermark.
        """
        params, slot, offset = self._params, replica.slot, Offset(cursor.fetch_offset)
        named = cursor.current_leader_epoch
        epoch = replica.leader_epoch if named < 0 else LeaderEpoch(named)
        replica.follower_fetched(
            FollowerFetch(
                BrokerId(params.replica_id),
                BrokerEpoch(params.replica_epoch),
                epoch,
                offset,
                Offset(cursor.log_start),
            )
        )
        if replica.is_throttled and self.is_quota_exceeded(replica):
            cursor.visible_end = UNKNOWN
            high = slot.high_watermark
            return Found(cursor, 0, high, high, slot.log_start, None, EMPTY_SLICE)
        if replica.is_usable:
            fresh = replica.end_tail(offset, size_max)
            if fresh is not None:
                cursor.visible_end = slot.log_end
                high = slot.high_watermark
                return Found(cursor, 0, high, high, slot.log_start, None, fresh)
        result = replica.log.read(offset, size_max=size_max, isolation=Isolation.LOG_END)
        cursor.visible_end = slot.log_end
        data = result.data
        if data.size_bytes:
            if not self._is_first and data.size_bytes > size_max:
                data = EMPTY_SLICE
            elif data.file is not replica.log.segments.active.log:
                self.has_older_segment = True
        high, start = result.high_watermark, result.log_start
        return Found(cursor, 0, high, result.last_stable_offset, start, None, data)

    def is_quota_exceeded(self, replica: ReadableReplica) -> bool:
        """Whether a follower has used up its throttled rate for now (KIP-73)."""
        if not self._is_limited(replica):
            return False
        cluster = self._partitions.cluster
        self.throttle_wait_s = cluster.leader_throttle.wait_s(cluster.monotonic_s())
        return self.throttle_wait_s > 0

    def _is_limited(self, replica: ReadableReplica) -> bool:
        return (
            replica.is_throttled
            and isinstance(replica, Partition)
            and self._params.replica_id not in replica.state.isr
        )

    def count_out(self, replica: ReadableReplica, size_bytes: int) -> None:
        """Records are on their way."""
        replica.count_out(size_bytes, is_follower=self.is_follower)
        if self.is_follower and self._is_limited(replica):
            cluster = self._partitions.cluster
            cluster.leader_throttle.record(size_bytes, cluster.monotonic_s())

    def pin(self, found: Sequence[Found]) -> Sequence[Found]:
        """Keep the files of all records open; one that cannot be kept becomes an error.

        A few bytes that were just written are copied at once: that costs less than a range.
        """
        pinned: list[Found] | None = None
        for number, one in enumerate(found):
            data = one.data
            if data.file is None:
                continue
            try:
                if data.is_fresh and data.size_bytes <= TAKEN_BYTES_MAX:
                    data.load(one.cursor.fetch_offset)
                    continue
                if data.is_fresh:
                    _log_of(one.cursor).check_tail(data, Offset(one.cursor.fetch_offset))
                data.file.pin()
            except (OSError, CorruptRecords) as error:
                pinned = pinned if pinned is not None else list(found)
                pinned[number] = self._unreadable(one, error)
        return pinned if pinned is not None else found

    def _unreadable(self, one: Found, error: OSError | CorruptRecords) -> Found:
        cursor = one.cursor
        log = _log_of(cursor)
        cursor.sent_high_watermark = UNKNOWN
        if isinstance(error, OSError):
            return self.failure(cursor, log.refused(error))
        try:
            log.note_damage(error, Offset(cursor.fetch_offset))
        except StorageFailed as failure:
            return self.failure(cursor, failure)
        return self.failure(cursor, error)

    def failure(self, cursor: Cursor, error: OperatingError) -> Found:
        """The answer for a partition that could not be read."""
        code = code_of(error)
        if (
            code is ErrorCode.KAFKA_STORAGE_ERROR
            and self._params.version < _FIRST_WITH_STORAGE_ERROR
        ):
            # Such clients do not know the code and would give up; this one makes them retry.
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return Found(cursor, code, -1, -1, -1, None, EMPTY_SLICE)


def forget_replicas(cursors: Iterable[Cursor]) -> None:
    """They are found again: another may have taken the place of any."""
    for cursor in cursors:
        cursor.replica = cursor.slot = None
        cursor.visible_end = UNKNOWN


def _log_of(cursor: Cursor) -> Log:
    invariant(cursor.replica is not None, "I-07 records of no partition", cursor=cursor)
    log: Log = cursor.replica.log
    return log


def _needs_no_epoch_check(cursor: Cursor, replica: ReadableReplica) -> bool:
    """Whether the client sent no epoch that differs from ours (KIP-320, KIP-595)."""
    return cursor.last_fetched_epoch < 0 and cursor.current_leader_epoch in (
        -1,
        replica.leader_epoch,
    )


def _is_already_checked(cursor: Cursor, replica: ReadableReplica) -> bool:
    """Whether the epochs of a follower that waited need no second check.

    They were checked when its request came, and its offset was noted; else it would not wait. It
    named the epoch in which we still lead, and in which our log has only grown since. The throttle
    of a partition is checked whenever it is read.
    """
    return cursor.current_leader_epoch == replica.leader_epoch and not replica.is_throttled


def _isolation(params: FetchParams) -> Isolation:
    if params.replica_id >= 0:
        return Isolation.LOG_END
    return Isolation.COMMITTED if params.isolation_level else Isolation.HIGH_WATERMARK


def _divergence(replica: ReadableReplica, cursor: Cursor) -> tuple[int, int] | None:
    """Where the client's log diverges from ours, if its last epoch shows that (KIP-595)."""
    log, slot, offset = replica.log, replica.slot, cursor.fetch_offset
    if cursor.last_fetched_epoch == log.latest_epoch and slot.log_start <= offset <= slot.log_end:
        return None  # our newest epoch ends with our log: most clients are in it
    epoch, end_offset = replica.end_of_epoch(LeaderEpoch(cursor.last_fetched_epoch))
    if epoch < 0 or offset < log.log_start:
        raise OffsetOutOfRange(requested=Offset(offset), start=log.log_start, end=log.log_end)
    if epoch < cursor.last_fetched_epoch or end_offset < offset:
        return epoch, end_offset
    return None


def _diverged(cursor: Cursor, replica: ReadableReplica, diverging: tuple[int, int]) -> Found:
    log = replica.log
    return Found(
        cursor,
        0,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start,
        None,
        EMPTY_SLICE,
        diverging,
    )
