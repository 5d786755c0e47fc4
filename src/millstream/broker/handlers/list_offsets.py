"""ListOffsets (key 2), versions 1-11.

Behaviour: one offset per partition, with the leader epoch it was written in (since version 4).
-1 latest: the high watermark or with read_committed the last stable offset, for other replicas the
log end. -2 earliest, -4 earliest local (since 8): the log start. -3 (since 7): the first record
with the largest timestamp. -5 latest tiered (since 9) and -6 earliest pending upload (since 11):
-1, as in Kafka without tiered storage. Any other timestamp: the first record at or after it. A
record at or above the latest offset is not returned: offset and timestamp are -1 without an error.
A special value that the version does not have is UNSUPPORTED_VERSION, a partition that is named
twice INVALID_REQUEST. The client's leader epoch is checked first (FENCED_LEADER_EPOCH,
UNKNOWN_LEADER_EPOCH). A leader whose high watermark has not reached the start of its epoch answers
what depends on it with OFFSET_NOT_AVAILABLE (before version 5 LEADER_NOT_AVAILABLE).
v2 isolation level · v4 leader epochs · v5 OFFSET_NOT_AVAILABLE · v6 flexible · v10 timeout for
tiered storage, which is not used.

A replica id from 0 on is a follower's: CLUSTER_AUTHORIZATION_FAILED unless the connection has
proven to be of that broker.

Where it differs from Kafka: a negative replica id other than -1 (a client's) is treated as a
follower's.
Invariants: I-07, I-15.
"""

from typing import Final

from millstream.broker.requests.between_brokers import check_replica
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.model.errors import OperatingError
from millstream.model.ids import NO_LEADER_EPOCH, LeaderEpoch, Offset, TimestampMs
from millstream.replication.errors import OffsetNotAvailable
from millstream.replication.partition import Partition
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.storage.log.reader import Isolation
from millstream.storage.log.time_search import TimestampAndOffset
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_NEVER: Final = 2**15
"""Above every version."""
_FIRST_VERSIONS: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_FIRST_WITH_EPOCH: Final = 4
_FIRST_WITH_NOT_AVAILABLE: Final = 5
_CLIENT: Final = -1
_NO_TIME: Final = TimestampMs(-1)


def handle(context: Context, request: ListOffsetsRequest) -> StepGenerator[ListOffsetsResponse]:
    """Look up every partition's offset."""
    check_replica(context, request.replica_id)
    lookup = _OffsetLookup(context, request)
    yield from lookup.steps()
    return lookup.response()


def failed(request: ListOffsetsRequest, error: ErrorCode, version: int) -> ListOffsetsResponse:
    """The same error for every partition."""
    del version
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                name=topic.name,
                partitions=[_no_offset(one.partition_index, error) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


class _OffsetLookup:
    """One request and the offsets found for it."""

    def __init__(self, context: Context, request: ListOffsetsRequest) -> None:
        self._partitions = context.services.partitions
        self._version = context.version
        self._isolation = Isolation.LOG_END
        if request.replica_id == _CLIENT:
            is_committed = request.isolation_level != 0
            self._isolation = Isolation.COMMITTED if is_committed else Isolation.HIGH_WATERMARK
        self._topics = request.topics
        self._found: dict[str, dict[int, ListOffsetsPartitionResponse]] = {
            topic.name: {} for topic in request.topics
        }

    def steps(self) -> StepGenerator[None]:
        """Find the offsets, in steps."""
        pace = YieldCounter()
        requested: dict[str, dict[int, ListOffsetsPartition | None]] = {}
        for topic in self._topics:
            ones = requested.setdefault(topic.name, {})
            for one in topic.partitions:
                index = one.partition_index
                ones[index] = None if index in ones else one  # none of a partition named twice
                if pace.is_due():
                    yield None
        for name, ones in requested.items():
            for index, only in ones.items():
                if only is None:
                    self._found[name][index] = _no_offset(index, ErrorCode.INVALID_REQUEST)
                else:
                    self._found[name][index] = yield from self._answer_steps(name, only)
                if pace.is_due():
                    yield None

    def response(self) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(name=name, partitions=list(found.values()))
                for name, found in self._found.items()
            ]
        )

    def _answer_steps(
        self, topic: str, requested: ListOffsetsPartition
    ) -> StepGenerator[ListOffsetsPartitionResponse]:
        index, timestamp_ms = requested.partition_index, requested.timestamp
        if timestamp_ms < 0 and self._version < _FIRST_VERSIONS.get(timestamp_ms, _NEVER):
            return _no_offset(index, ErrorCode.UNSUPPORTED_VERSION)
        try:
            leader = self._partitions.get((topic, index))
            leader.log.check_open()
            leader.check_leader_epoch(requested.current_leader_epoch)
            found_record = yield from self._find_steps(leader, timestamp_ms)
        except OffsetNotAvailable as error:
            is_known = self._version >= _FIRST_WITH_NOT_AVAILABLE
            return _no_offset(index, code_of(error) if is_known else ErrorCode.LEADER_NOT_AVAILABLE)
        except OperatingError as error:
            return _no_offset(index, code_of(error))
        if found_record is None:
            return _no_offset(index, ErrorCode.NONE)
        epoch = found_record.leader_epoch if self._version >= _FIRST_WITH_EPOCH else NO_LEADER_EPOCH
        return ListOffsetsPartitionResponse(
            partition_index=index,
            timestamp=found_record.timestamp_ms,
            offset=found_record.offset,
            leader_epoch=epoch,
        )

    def _find_steps(
        self, leader: Partition, timestamp_ms: int
    ) -> StepGenerator[TimestampAndOffset | None]:
        end = leader.visible_end(self._isolation)
        if timestamp_ms == LATEST:
            self._check_end(leader)
            return TimestampAndOffset(end, _NO_TIME, leader.leader_epoch)
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
            return TimestampAndOffset(leader.log_start, _NO_TIME, _first_epoch(leader))
        if timestamp_ms in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return None
        if timestamp_ms == MAX_TIMESTAMP:
            found = yield from leader.log.find_max_timestamp_steps()
        else:
            found = yield from leader.log.find_timestamp_steps(TimestampMs(timestamp_ms))
        if found is not None and found.offset < end:
            return found
        self._check_end(leader)
        return None

    def _check_end(self, leader: Partition) -> None:
        """A consumer must not see an end offset below that of an earlier leader (KIP-207)."""
        if self._isolation is not Isolation.LOG_END:
            leader.check_high_watermark_known()


def _first_epoch(leader: Partition) -> LeaderEpoch:
    """Of the log start; unknown if the epoch of its records was not stored."""
    return leader.log.epochs.epoch_at(Offset(leader.log_start))


def _no_offset(index: int, error: ErrorCode) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(partition_index=index, error_code=error)
