"""OffsetCommit (key 8), versions 2-10.

Behaviour: offsets of partitions that exist are committed together, and are in the log of all
replicas in sync before the answer; each partition has its own error. A partition that does not
exist is UNKNOWN_TOPIC_OR_PARTITION, an unknown topic id UNKNOWN_TOPIC_ID; the others are committed.
Only a member of the group's current generation or epoch may commit for it, or any client while it
has no members.
v5 no retention time · v6 leader epochs (KIP-320) · v7 static members · v8 flexible · v9 member
epochs (KIP-848) · v10 topic ids
Invariants: I-28, I-29.
"""

from collections.abc import Coroutine, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from millstream.broker.groups.calls import GroupCall, coordinator_of, group_code, response_of
from millstream.broker.requests.context import Context
from millstream.controller.image import ClusterImage, TopicImage
from millstream.model.errors import OperatingError
from millstream.model.ids import TopicId
from millstream.runtime.scheduler import (
    ITEMS_PER_TURN,
    StepGenerator,
    YieldCounter,
    run_blocking,
    run_on_loop,
)
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

_FIRST_WITH_TOPIC_IDS: Final = 10

BODIES_KEPT: Final = 4096
"""Cached encoded answers: about a hundred bytes for each partition."""

Codes = Mapping[tuple[str, int], int]
"""By a topic's name and a partition."""


def handle(
    context: Context, request: OffsetCommitRequest
) -> OffsetCommitResponse | Coroutine[Any, Any, OffsetCommitResponse] | None:
    """Let the group commit the offsets of partitions that exist."""
    if sum([len(topic.partitions) for topic in request.topics]) > ITEMS_PER_TURN:
        return _large(context, request)
    image, version = context.services.image, context.version
    if version < _FIRST_WITH_TOPIC_IDS and (topics := _all_known(image, request)):
        wanted = _of_topics(request, topics)
        _FastPathCommit(context, wanted).submit(coordinator_of(context).offset_commit)
        return None
    known = run_blocking(_sort_steps(image, request, version))
    if not known.wanted.topics:
        return run_blocking(_answer_steps(request, known, {}, version))

    def finish(found: OffsetCommitResponse) -> OffsetCommitResponse:
        return run_blocking(_answer_steps(request, known, _codes_in(found), version))

    def refuse(_: object, error: ErrorCode, version: int) -> OffsetCommitResponse:
        return failed(request, error, version)

    call = GroupCall(context, known.wanted, refuse, finish)
    call.submit(coordinator_of(context).offset_commit)
    return None


async def _large(context: Context, request: OffsetCommitRequest) -> OffsetCommitResponse:
    image, version = context.services.image, context.version
    known = await run_on_loop(_sort_steps(image, request, version))
    codes: Codes = {}
    if known.wanted.topics:
        found = await response_of(coordinator_of(context).offset_commit, context, known.wanted)
        if isinstance(found, OperatingError):
            return failed(request, group_code(found), version)
        codes = _codes_in(found)
    return await run_on_loop(_answer_steps(request, known, codes, version))


class _FastPathCommit(GroupCall):
    """A commit of partitions that all exist, by topic name: nearly all commits are.

    The group's response is the answer.
    """

    __slots__ = ()

    def __init__(self, context: Context, request: OffsetCommitRequest) -> None:
        super().__init__(context, request, failed, None)

    def respond(self, response: Any) -> None:
        if isinstance(response, OffsetCommitResponse) and self._context.peer.is_open:
            body = _usual_body(response, self._context.version)
            if body is not None:
                self._context.answer_parts((body,))
                return
        super().respond(response)


def _usual_body(response: OffsetCommitResponse, version: int) -> bytes | None:
    """The answer without an error for a single partition, encoded; None for any other."""
    if len(response.topics) != 1 or response.unknown_tags:
        return None
    (topic,) = response.topics
    if len(topic.partitions) != 1 or topic.partitions[0].error_code:
        return None
    return _body_without_error(topic.name, topic.partitions[0].partition_index, version)


@lru_cache(maxsize=BODIES_KEPT)
def _body_without_error(topic: str, partition_index: int, version: int) -> bytes:
    """Cached, because consumers commit the same partitions all the time."""
    partition = OffsetCommitResponsePartition(partition_index=partition_index)
    answer = OffsetCommitResponseTopic(name=topic, partitions=[partition])
    return OffsetCommitResponse(topics=[answer]).encode(version)


def _all_known(
    image: ClusterImage, request: OffsetCommitRequest
) -> list[OffsetCommitRequestTopic] | None:
    """The topics of the request with their ids; None unless all of its partitions exist."""
    found = []
    for topic in request.topics:
        image_of_topic = image.topics.get(topic.name)
        if image_of_topic is None or not topic.partitions:
            return None
        count = len(image_of_topic.partitions)
        for one in topic.partitions:
            if not 0 <= one.partition_index < count:
                return None
        found.append(
            OffsetCommitRequestTopic(
                name=topic.name, topic_id=image_of_topic.topic_id, partitions=topic.partitions
            )
        )
    return found


def _of_topics(
    request: OffsetCommitRequest, topics: list[OffsetCommitRequestTopic]
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        retention_time_ms=request.retention_time_ms,
        topics=topics,
    )


class _Known(NamedTuple):
    """The part of a request that exists."""

    wanted: OffsetCommitRequest
    names: list[str]
    """Of its topics, in their order; "" for an unknown id."""


def _sort_steps(
    image: ClusterImage, request: OffsetCommitRequest, version: int
) -> StepGenerator[_Known]:
    wanted: list[OffsetCommitRequestTopic] = []
    names = []
    pace = YieldCounter()
    for topic in request.topics:
        found = _topic(image, topic, version)
        names.append(topic.name if version < _FIRST_WITH_TOPIC_IDS else found.name if found else "")
        count = 0 if found is None else len(found.partitions)
        partitions = [one for one in topic.partitions if 0 <= one.partition_index < count]
        if partitions and found is not None:
            wanted.append(
                OffsetCommitRequestTopic(
                    name=found.name, topic_id=found.topic_id, partitions=partitions
                )
            )
        if pace.is_due(1 + len(topic.partitions)):
            yield None
    return _Known(_of_topics(request, wanted), names)


def _topic(image: ClusterImage, topic: OffsetCommitRequestTopic, version: int) -> TopicImage | None:
    if version < _FIRST_WITH_TOPIC_IDS:
        return image.topics.get(topic.name)
    return image.topics_by_id.get(TopicId(topic.topic_id))


def _codes_in(response: OffsetCommitResponse) -> Codes:
    return {
        (topic.name, one.partition_index): one.error_code
        for topic in response.topics
        for one in topic.partitions
    }


def _answer_steps(
    request: OffsetCommitRequest, known: _Known, codes: Codes, version: int
) -> StepGenerator[OffsetCommitResponse]:
    """In the order of the request."""
    topics = []
    pace = YieldCounter()
    for topic, name in zip(request.topics, known.names, strict=True):
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if version >= _FIRST_WITH_TOPIC_IDS and not name:
            unknown = ErrorCode.UNKNOWN_TOPIC_ID
        partitions = [
            OffsetCommitResponsePartition(
                partition_index=one.partition_index,
                error_code=codes.get((name, one.partition_index), unknown),
            )
            for one in topic.partitions
        ]
        topics.append(
            OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
        if pace.is_due(1 + len(partitions)):
            yield None
    return OffsetCommitResponse(topics=topics)


def failed(request: OffsetCommitRequest, error: ErrorCode, version: int) -> OffsetCommitResponse:
    """The same error for every partition."""
    del version
    topics = [
        OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                OffsetCommitResponsePartition(partition_index=one.partition_index, error_code=error)
                for one in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return OffsetCommitResponse(topics=topics)
