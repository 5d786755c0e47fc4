"""Fetch (key 1), versions 4-18.

Behaviour: records are read up to the high watermark (read_uncommitted) or the last stable offset
with the list of aborted transactions (read_committed); bytes are those of the segment files and are
sent as file ranges. The answer waits up to `max_wait_ms` for `min_bytes`; an error of a read ends
the wait, a partition that does not exist does not. `fetch.max.bytes` limits a request; the first
batch is sent whatever its size. Sessions (KIP-227) send only what changed. A request that names
thousands of partitions, or in whose session thousands are due, is served in steps.
v5 log start · v6 KAFKA_STORAGE_ERROR (before: NOT_LEADER_OR_FOLLOWER) · v7 sessions · v9 leader
epoch (KIP-320) · v10 zstd topics · v11 rack: a consumer with one may read from a follower, and
is sent to one in its rack if the broker is rack aware (KIP-392) · v12 flexible, diverging
epoch · v13 topic ids · v15 replica state · v16 leader hints (KIP-951) · v17-18 fields of KRaft's
followers, read and not used.

A follower's fetch (a replica id, with its broker epoch since version 15) is served only on a
connection that has proven to be of that broker, else CLUSTER_AUTHORIZATION_FAILED. It reads up to
the log end and waits for that, or for a log start above its own; its fetch offset shows what it
has, which advances the high watermark. A broker that is no replica gets UNKNOWN_LEADER_EPOCH, or
without an epoch NOT_LEADER_OR_FOLLOWER. One that is not in sync gets no records of throttled
partitions while `leader.replication.throttled.rate` is exceeded (KIP-73).

Where it differs from Kafka: a consumer without a rack reads from leaders only; an isolation level
other than 0 and 1 is an INVALID_REQUEST, a negative byte limit counts as 0 (Kafka:
UNKNOWN_SERVER_ERROR for both).
Invariants: I-07, I-09, I-15, I-23, I-36, I-37.
"""

from typing import Final

from millstream.broker.fetch.answer import answer, wait_ms_of
from millstream.broker.fetch.delayed import DelayedFetch
from millstream.broker.fetch.large import (
    PARTITIONS_AT_ONCE_MAX,
    LargeFetch,
    large_request_steps,
)
from millstream.broker.fetch.read import FetchReader, reader_of
from millstream.broker.fetch.request import FIRST_WITH_TOPIC_IDS, FetchParams
from millstream.broker.fetch.request import decode as decode
from millstream.broker.fetch.tail import SIZE_BYTES, TailFetch, leader_of
from millstream.broker.requests.between_brokers import check_replica
from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.model.errors import OperatingError
from millstream.runtime.scheduler import Computation, StepGenerator
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

FETCH_MAX_BYTES: Final = "fetch.max.bytes"

_ISOLATION_LEVELS: Final = (0, 1)


def handle(
    context: Context, request: FetchParams
) -> FetchResponse | StepGenerator[FetchResponse | None] | StepGenerator[None] | None:
    """Answer now, or let the request wait on its partitions until there is enough."""
    if len(request.partitions) + len(request.forgotten) > PARTITIONS_AT_ONCE_MAX:
        return _large_steps(context, request)
    services = context.services
    if request.isolation_level not in _ISOLATION_LEVELS:
        return failed(request, ErrorCode.INVALID_REQUEST, request.version)
    if request.replica_id >= 0:
        check_replica(context, request.replica_id)
    bytes_max = services.configs.get_int(FETCH_MAX_BYTES)
    leader = leader_of(context, request)
    if leader is not None and TailFetch(context, request, leader, answer_late, bytes_max).begin():
        return None
    round_ = services.fetch_sessions.begin(request)
    reader = reader_of(services, round_, bytes_max)
    due = reader.begin()
    if len(due) > PARTITIONS_AT_ONCE_MAX:
        return LargeFetch(context, reader).steps()
    found = reader.read(due)
    wait_ms = wait_ms_of(reader, found)
    if wait_ms:
        wait = DelayedFetch(context, reader, answer_late)
        wait.join(round_.cursors, found)
        wait.start(max_wait_ms=wait_ms)
    else:
        answer(context, reader, found)
    return None


def _large_steps(context: Context, request: FetchParams) -> StepGenerator[FetchResponse | None]:
    """The same for very many partitions; the error of each takes long to write, too."""
    code = ErrorCode.NONE
    if request.isolation_level not in _ISOLATION_LEVELS:
        code = ErrorCode.INVALID_REQUEST
    try:
        check_replica(context, request.replica_id)
    except OperatingError as error:
        code = code_of(error)
    if code:
        response: FetchResponse = yield Computation(failed, request, code, request.version)
        return response
    bytes_max = context.services.configs.get_int(FETCH_MAX_BYTES)
    yield from large_request_steps(context, request, bytes_max)
    return None


def answer_late(context: Context, reader: FetchReader) -> None:
    """Read again and send the result."""
    frame = reader.tail_frame(context.facts)
    if frame is not None:
        context.answer_frame((frame,), len(frame) - SIZE_BYTES, error_count=0)
        return
    due = reader.begin()
    if len(due) > PARTITIONS_AT_ONCE_MAX:
        LargeFetch(context, reader).answer_late(context, reader)
    else:
        answer(context, reader, reader.read(due))


def failed(request: FetchParams, error: ErrorCode, version: int) -> FetchResponse:
    """The error of the whole request; before version 13 also that of every partition."""
    response = FetchResponse(error_code=error, session_id=request.session_id)
    if version < FIRST_WITH_TOPIC_IDS:
        for topic, index, *_ in request.partitions:
            if not response.responses or response.responses[-1].topic != topic:
                response.responses.append(FetchableTopicResponse(topic=str(topic)))
            one = PartitionData(partition_index=index, error_code=error, high_watermark=-1)
            one.records = b""
            response.responses[-1].partitions.append(one)
    return response
