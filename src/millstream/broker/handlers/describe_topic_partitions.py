"""DescribeTopicPartitions (key 75), version 0.

Behaviour: topics sorted by name, from the cursor on, at most `response_partition_limit` partitions
and never more than `max.request.partition.size.limit`; the next cursor says where the next page
starts. A request without topics is for all. A topic that does not exist has an error if it was
requested by name. A cursor that is not among the requested topics, or has a negative partition, is
an INVALID_REQUEST. Authorized operations are always included. Eligible leader replicas (KIP-966)
are empty.

Where it differs from Kafka: nothing known.
"""

from collections.abc import Iterable
from typing import Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.topic_changes import is_log_offline
from millstream.controller.errors import InvalidTopicName
from millstream.controller.image import TopicImage
from millstream.controller.topics import check_topic_name, is_internal
from millstream.controller.views import TOPIC_OPERATIONS_ALL, PartitionViews
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    ResponseCursor,
)

PARTITION_LIMIT: Final = "max.request.partition.size.limit"

_AS_NEWEST_METADATA: Final = 13


def handle(
    context: Context, request: DescribeTopicPartitionsRequest
) -> StepGenerator[DescribeTopicPartitionsResponse]:
    """One page."""
    services = context.services
    names = _names_from_cursor(request, services.image.topics)
    if names is None:
        return failed(request, ErrorCode.INVALID_REQUEST, context.version)
    limit = min(services.configs.get_int(PARTITION_LIMIT), request.response_partition_limit)
    page = _Page(context, partitions_left=max(1, limit))
    is_by_name = bool(request.topics)
    pace = YieldCounter()
    for name in names:
        if pace.is_due():
            yield None
        cursor = request.cursor
        first = cursor.partition_index if cursor and cursor.topic_name == name else 0
        topic = services.image.topics.get(name)
        if page.is_full:
            page.end_before(name, 0)
            break
        if topic is not None:
            yield from page.add(topic, first, pace)
        elif is_by_name:
            page.add_missing(name)
        if page.response.next_cursor is not None:
            break
    return page.response


def failed(
    request: DescribeTopicPartitionsRequest, error: ErrorCode, version: int
) -> DescribeTopicPartitionsResponse:
    """The error for every topic of the request."""
    del version
    topics = [
        DescribeTopicPartitionsResponseTopic(error_code=error, name=topic.name)
        for topic in request.topics
    ]
    return DescribeTopicPartitionsResponse(topics=topics)


def _names_from_cursor(
    request: DescribeTopicPartitionsRequest, existing: Iterable[str]
) -> list[str] | None:
    """Sorted, each once; None for an invalid cursor."""
    cursor = request.cursor
    requested = {topic.name for topic in request.topics} or set(existing)
    if cursor is None:
        return sorted(requested)
    if cursor.partition_index < 0:
        return None
    if request.topics and cursor.topic_name not in requested:
        return None
    return sorted(name for name in requested if name >= cursor.topic_name)


class _Page:
    """Fills one response up to its number of partitions."""

    def __init__(self, context: Context, *, partitions_left: int) -> None:
        self.response = DescribeTopicPartitionsResponse()
        self._services = context.services
        self._left = partitions_left
        self._views = PartitionViews(
            context.services.image, context.peer.listener, version=_AS_NEWEST_METADATA
        )

    @property
    def is_full(self) -> bool:
        return self._left == 0

    def end_before(self, topic: str, partition: int) -> None:
        """Set the start of the next page."""
        self.response.next_cursor = ResponseCursor(topic_name=topic, partition_index=partition)

    def add(self, topic: TopicImage, first: int, pace: YieldCounter) -> StepGenerator[None]:
        """The topic from this partition on, as far as the page has room."""
        end = min(len(topic.partitions), first + self._left)
        shown = []
        for index in range(first, end):
            shown.append(self._partition_response(topic, index))
            if pace.is_due():
                yield None
        self.response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=is_internal(topic.name),
                partitions=shown,
                topic_authorized_operations=TOPIC_OPERATIONS_ALL,
            )
        )
        self._left -= len(shown)
        if end < len(topic.partitions):
            self.end_before(topic.name, end)

    def add_missing(self, name: str) -> None:
        """A requested topic that does not exist."""
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            check_topic_name(name)
        except InvalidTopicName:
            error = ErrorCode.INVALID_TOPIC_EXCEPTION
        self.response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                error_code=error,
                name=name,
                is_internal=is_internal(name),
                topic_authorized_operations=TOPIC_OPERATIONS_ALL,
            )
        )

    def _partition_response(
        self, topic: TopicImage, index: int
    ) -> DescribeTopicPartitionsResponsePartition:
        one = topic.partitions[index]
        view = self._views.of(one, is_log_offline=is_log_offline(self._services, topic, one))
        return DescribeTopicPartitionsResponsePartition(
            partition_index=index,
            leader_id=view.leader,
            leader_epoch=one.leader_epoch,
            replica_nodes=view.replicas,
            isr_nodes=view.isr,
            eligible_leader_replicas=[],
            last_known_elr=[],
            offline_replicas=view.offline,
        )
