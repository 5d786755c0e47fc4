"""OffsetDelete (key 47), version 0.

Behaviour: offsets of the partitions are deleted, unless the group is subscribed to the topic
(GROUP_SUBSCRIBED_TO_TOPIC); each partition has its own error, UNKNOWN_TOPIC_OR_PARTITION if it does
not exist. An error of the whole request, such as GROUP_ID_NOT_FOUND, has no partitions. An empty
group id is INVALID_GROUP_ID.
Invariants: I-29.
"""

from collections.abc import Mapping

from millstream.broker.groups.calls import coordinator_of, group_code, response_of
from millstream.broker.requests.context import Context
from millstream.controller.image import ClusterImage
from millstream.model.errors import OperatingError
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_on_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

Codes = Mapping[tuple[str, int], int]
"""By a topic's name and a partition."""


async def handle(context: Context, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
    """Let the group delete the offsets of partitions that exist."""
    if not request.group_id:
        return failed(request, ErrorCode.INVALID_GROUP_ID, context.version)
    wanted = await run_on_loop(_sort_steps(context.services.image, request))
    found = await response_of(coordinator_of(context).offset_delete, context, wanted)
    if isinstance(found, OperatingError):
        return failed(request, group_code(found), context.version)
    if found.error_code != ErrorCode.NONE:
        return OffsetDeleteResponse(error_code=found.error_code)
    codes: Codes = {
        (topic.name, one.partition_index): one.error_code
        for topic in found.topics
        for one in topic.partitions
    }
    return await run_on_loop(_answer_steps(request, codes))


def _sort_steps(
    image: ClusterImage, request: OffsetDeleteRequest
) -> StepGenerator[OffsetDeleteRequest]:
    """The part of the request that exists."""
    topics = []
    pace = YieldCounter()
    for topic in request.topics:
        found = image.topics.get(topic.name)
        count = 0 if found is None else len(found.partitions)
        partitions = [one for one in topic.partitions if 0 <= one.partition_index < count]
        if partitions:
            topics.append(OffsetDeleteRequestTopic(name=topic.name, partitions=partitions))
        if pace.is_due(1 + len(topic.partitions)):
            yield None
    return OffsetDeleteRequest(group_id=request.group_id, topics=topics)


def _answer_steps(
    request: OffsetDeleteRequest, codes: Codes
) -> StepGenerator[OffsetDeleteResponse]:
    response = OffsetDeleteResponse()
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    pace = YieldCounter()
    for topic in request.topics:
        partitions = [
            OffsetDeleteResponsePartition(
                partition_index=one.partition_index,
                error_code=codes.get((topic.name, one.partition_index), unknown),
            )
            for one in topic.partitions
        ]
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        if pace.is_due(1 + len(partitions)):
            yield None
    return response


def failed(request: OffsetDeleteRequest, error: ErrorCode, version: int) -> OffsetDeleteResponse:
    """The error of the whole request."""
    del request, version
    return OffsetDeleteResponse(error_code=error)
