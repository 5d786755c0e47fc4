"""OffsetFetch (key 9), versions 1-10.

Behaviour: the committed offset of each requested partition, -1 if there is none; all offsets of the
group if no topics are named (v2+). With `require_stable` (v7+) partitions whose offset is being
committed by an open transaction are UNSTABLE_OFFSET_COMMIT, and the answer waits for commits in
progress. An offset is returned when all replicas in sync have it. From version 8 on several groups
at once, each with its own error; before that the error is the request's, in version 1 every
partition's. A topic need not exist to have offsets, but by id (v10) it must: UNKNOWN_TOPIC_ID. The
empty id is a valid group id, as in Kafka.
v2 all topics, error · v5 leader epochs · v6 flexible · v7 stable offsets (KIP-447) · v8 several
groups (KIP-709) · v9 member ids and epochs (KIP-848) · v10 topic ids
Invariants: I-29, I-30.
"""

import asyncio
from typing import Any, Final
from uuid import UUID

from millstream.broker.groups.calls import coordinator_of, group_code, response_of
from millstream.broker.requests.context import Context
from millstream.controller.image import ClusterImage
from millstream.groups.offsets.fetch_request import OffsetFetch
from millstream.model.errors import OperatingError
from millstream.model.ids import TopicId
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_on_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

_FIRST_WITH_ERROR: Final = 2
_FIRST_WITH_GROUPS: Final = 8
_FIRST_WITH_TOPIC_IDS: Final = 10
_NO_ID: Final = UUID(int=0)
_NO_OFFSET: Final = -1


async def handle(context: Context, request: OffsetFetchRequest) -> OffsetFetchResponse:
    """Fetch the offsets of every group."""
    version = context.version
    groups = []
    wanted = await run_on_loop(_groups(request, version))
    for group in wanted:
        one = OffsetFetch(group, request.require_stable, may_wait=len(wanted) == 1)
        groups.append(await _found(context, one))
        await asyncio.sleep(0)
    if version >= _FIRST_WITH_GROUPS:
        return OffsetFetchResponse(groups=groups)
    return await run_on_loop(_of_one_group_steps(groups[0]))


async def _found(context: Context, request: OffsetFetch) -> OffsetFetchResponseGroup:
    version = context.version
    image = context.services.image
    unknown: list[OffsetFetchResponseTopics] = []
    group = request.group
    if version >= _FIRST_WITH_TOPIC_IDS and group.topics is not None:
        wanted, unknown = await run_on_loop(_name_steps(image, group))
        request = request._replace(group=wanted)
    found: Any = await response_of(coordinator_of(context).offset_fetch, context, request)
    if isinstance(found, OperatingError):
        return _refused(group, group_code(found), version)
    if version >= _FIRST_WITH_TOPIC_IDS and found.error_code == ErrorCode.NONE:
        known = await run_on_loop(_identify_steps(context.services.image, found.topics))
        found.topics = known + unknown
    return found  # type: ignore[no-any-return]


def _groups(
    request: OffsetFetchRequest, version: int
) -> StepGenerator[list[OffsetFetchRequestGroup]]:
    """The groups, in the form of version 8; each once."""
    if version >= _FIRST_WITH_GROUPS:
        return list({group.group_id: group for group in request.groups}.values())
    topics: list[OffsetFetchRequestTopics] | None = None
    if request.topics is not None:
        topics = []
        pace = YieldCounter()
        for one in request.topics:
            topics.append(
                OffsetFetchRequestTopics(name=one.name, partition_indexes=one.partition_indexes)
            )
            if pace.is_due():
                yield None
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _name_steps(
    image: ClusterImage, group: OffsetFetchRequestGroup
) -> StepGenerator[tuple[OffsetFetchRequestGroup, list[OffsetFetchResponseTopics]]]:
    """The group with the names of its topics, and the answers for unknown ids."""
    topics, unknown = [], []
    pace = YieldCounter()
    for one in group.topics or ():
        found = image.topics_by_id.get(TopicId(one.topic_id))
        if found is None:
            error = ErrorCode.UNKNOWN_TOPIC_ID
            unknown.append(
                OffsetFetchResponseTopics(
                    topic_id=one.topic_id,
                    partitions=[_no_offset(index, error) for index in one.partition_indexes],
                )
            )
        else:
            topics.append(
                OffsetFetchRequestTopics(
                    name=found.name,
                    topic_id=one.topic_id,
                    partition_indexes=one.partition_indexes,
                )
            )
        if pace.is_due(1 + len(one.partition_indexes)):
            yield None
    named = OffsetFetchRequestGroup(
        group_id=group.group_id,
        member_id=group.member_id,
        member_epoch=group.member_epoch,
        topics=topics,
    )
    return named, unknown


def _identify_steps(
    image: ClusterImage, topics: list[OffsetFetchResponseTopics]
) -> StepGenerator[list[OffsetFetchResponseTopics]]:
    """With their ids; topics that were deleted have none and are left out."""
    known = []
    pace = YieldCounter()
    for one in topics:
        topic = image.topics.get(one.name)
        one.topic_id = _NO_ID if topic is None else topic.topic_id
        if topic is not None:
            known.append(one)
        if pace.is_due():
            yield None
    return known


def _of_one_group_steps(group: OffsetFetchResponseGroup) -> StepGenerator[OffsetFetchResponse]:
    """The answer before version 8."""
    response = OffsetFetchResponse(error_code=group.error_code)
    pace = YieldCounter()
    for topic in group.topics:
        partitions = [
            OffsetFetchResponsePartition(
                partition_index=one.partition_index,
                committed_offset=one.committed_offset,
                committed_leader_epoch=one.committed_leader_epoch,
                metadata=one.metadata,
                error_code=one.error_code,
            )
            for one in topic.partitions
        ]
        response.topics.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        if pace.is_due(1 + len(partitions)):
            yield None
    return response


def _no_offset(index: int, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=_NO_OFFSET,
        committed_leader_epoch=-1,
        metadata="",
        error_code=error,
    )


def _refused(
    group: OffsetFetchRequestGroup, error: ErrorCode, version: int
) -> OffsetFetchResponseGroup:
    """Version 1 has error fields only in partitions."""
    refused = OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)
    if version < _FIRST_WITH_ERROR:
        refused.topics = [
            OffsetFetchResponseTopics(
                name=one.name,
                partitions=[_no_offset(index, error) for index in one.partition_indexes],
            )
            for one in group.topics or ()
        ]
    return refused


def failed(request: OffsetFetchRequest, error: ErrorCode, version: int) -> OffsetFetchResponse:
    """The same error for every group."""
    if version >= _FIRST_WITH_GROUPS:
        groups = [_refused(group, error, version) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    response = OffsetFetchResponse(error_code=error)
    if version < _FIRST_WITH_ERROR:
        response.topics = [
            OffsetFetchResponseTopic(
                name=one.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=_NO_OFFSET,
                        metadata="",
                        error_code=error,
                    )
                    for index in one.partition_indexes
                ],
            )
            for one in request.topics or ()
        ]
    return response
