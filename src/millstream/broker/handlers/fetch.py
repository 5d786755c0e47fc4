"""Fetch (key 1), versions 4-18.

Behaviour: records are read up to the high watermark (read_uncommitted) or the last stable offset
with the list of aborted transactions (read_committed); bytes are those of the segment files and are
sent as file ranges. The answer waits up to `max_wait_ms` for `min_bytes`; an error of a read ends
the wait, a partition that does not exist does not. `fetch.max.bytes` limits a request; the first
batch is sent whatever its size. Sessions (KIP-227) send only what changed.
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

import math
from typing import Final

from millstream.broker.fetch.closest_replica import replica_selector
from millstream.broker.fetch.delayed import DelayedFetch, is_log_start_unsent
from millstream.broker.fetch.read import FetchReader
from millstream.broker.fetch.request import FIRST_WITH_TOPIC_IDS, FetchParams
from millstream.broker.fetch.request import decode as decode
from millstream.broker.fetch.response import NO_HINTS, Hints, encode, encode_frame
from millstream.broker.fetch.sessions import Found, RoundAnswer
from millstream.broker.fetch.tail import SIZE_BYTES, TailFetch, leader_of
from millstream.broker.requests.advertised_brokers import leader_hint
from millstream.broker.requests.between_brokers import check_replica
from millstream.broker.requests.context import Context
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

FETCH_MAX_BYTES: Final = "fetch.max.bytes"

HELD_BACK_MS_MIN: Final = 20
"""Between two answers to a follower that catches up and has used up its rate limit."""

_ISOLATION_LEVELS: Final = (0, 1)
_FIRST_WITH_HINTS: Final = 16
_HINTED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def handle(context: Context, request: FetchParams) -> FetchResponse | None:
    """Answer now, or let the request wait on its partitions until there is enough."""
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
    select = replica_selector(services, request) if request.rack_id else None
    reader = FetchReader(services.partitions, round_, bytes_max=bytes_max, select=select)
    found = reader.read()
    min_bytes = min(request.min_bytes, reader.bytes_max)
    if _may_wait(request, reader, found, min_bytes):
        wait_ms = request.max_wait_ms
        if reader.throttle_wait_s:
            wait_ms = min(wait_ms, max(HELD_BACK_MS_MIN, math.ceil(reader.throttle_wait_s * 1000)))
        delayed = DelayedFetch(context, reader, answer_late, min_bytes=min_bytes)
        delayed.start(found, max_wait_ms=wait_ms)
    else:
        answer(context, reader, found)
    return None


def _may_wait(
    request: FetchParams, reader: FetchReader, found: list[Found], min_bytes: int
) -> bool:
    if request.max_wait_ms <= 0 or reader.has_older_segment:
        return False
    size = unknown_count = 0
    for one in found:
        if one.is_unknown:
            unknown_count += 1
        elif one.error or one.diverging is not None or one.preferred_replica >= 0:
            return False
        if reader.is_follower and is_log_start_unsent(one.cursor, one.log_start):
            return False
        size += one.data.size_bytes
    # Do not wait either if none of the partitions exists.
    return size < min_bytes and unknown_count < len(reader.round.cursors)


def answer_late(context: Context, reader: FetchReader) -> None:
    """Read again and send the result."""
    frame = reader.tail_frame(context.facts)
    if frame is not None:
        context.answer_frame((frame,), len(frame) - SIZE_BYTES, error_count=0)
    else:
        answer(context, reader, reader.read())


def answer(context: Context, reader: FetchReader, found: list[Found]) -> None:
    """Send what was found, or what of it changed in the session.

    The files of the ranges are pinned here; the connection unpins them when they are sent or
    dropped.
    """
    round_answer = context.services.fetch_sessions.finish(reader.round, found)
    pinned = reader.pin(round_answer.found)
    if pinned is not round_answer.found:
        round_answer = round_answer._replace(found=pinned)
    error_count = 1 if round_answer.error else 0
    for one in round_answer.found:
        if one.error:
            error_count += 1
        elif one.cursor.replica is not None:
            reader.count_out(one.cursor.replica, one.data.size_bytes)
    facts = context.facts
    hints = NO_HINTS
    if error_count and facts.version >= _FIRST_WITH_HINTS:
        hints = _hints(context, round_answer)
    frame = encode_frame(facts.version, facts.correlation_id, round_answer) if not hints else None
    if frame is not None:
        context.answer_frame(*frame, error_count=error_count)
    else:
        context.answer_parts(encode(facts.version, round_answer, hints), error_count=error_count)


def _hints(context: Context, round_answer: RoundAnswer) -> Hints:
    hints: Hints = {}
    for one in round_answer.found:
        cursor = one.cursor
        topic, index = cursor.key
        name = topic if isinstance(topic, str) else cursor.name
        if one.error in _HINTED and name is not None:
            hint = leader_hint(context, name, index)
            if hint is not None:
                hints[cursor.key] = hint
    return hints


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
