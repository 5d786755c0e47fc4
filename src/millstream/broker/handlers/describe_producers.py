"""DescribeProducers (key 61), version 0.

Behaviour: the producer state of this broker's log, whether it is the leader or a follower (then as
far as it has replicated), with epoch, last sequence and timestamp, and the start of each open
transaction (KIP-664). A broker without a replica is NOT_LEADER_OR_FOLLOWER. An invalid topic name
is INVALID_TOPIC_EXCEPTION, an unknown topic or partition UNKNOWN_TOPIC_OR_PARTITION; per topic with
a message, per partition without, as in Kafka. A producer known only from a marker has sequence -1;
one whose batches were removed by retention stays until `producer.id.expiration.ms`.

Where it differs from Kafka: a partition that is named several times is answered once.
"""

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of
from millstream.model.errors import OperatingError
from millstream.runtime.scheduler import StepGenerator, YieldCounter
from millstream.storage.names import is_legal_topic
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)


def handle(
    context: Context, request: DescribeProducersRequest
) -> StepGenerator[DescribeProducersResponse]:
    """List the producers of every requested partition."""
    pace = YieldCounter()
    response = DescribeProducersResponse()
    for topic in request.topics:
        response.topics.append((yield from _topic(context, topic, pace)))
        if pace.is_due():
            yield None
    return response


def failed(
    request: DescribeProducersRequest, error: ErrorCode, version: int
) -> DescribeProducersResponse:
    """The same error for every partition."""
    del version
    return DescribeProducersResponse(topics=[_refused(topic, error) for topic in request.topics])


def _topic(
    context: Context, topic: TopicRequest, pace: YieldCounter
) -> StepGenerator[TopicResponse]:
    if not is_legal_topic(topic.name):
        error = ErrorCode.INVALID_TOPIC_EXCEPTION
        return _refused(topic, error, f"{topic.name!r} is not a legal topic name")
    if topic.name not in context.services.image.topics:
        error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _refused(topic, error, error.text)
    response = TopicResponse(name=topic.name)
    # Each once: a partition may have many producers, and naming it costs four bytes.
    for index in dict.fromkeys(topic.partition_indexes):
        response.partitions.append((yield from _partition(context, topic.name, index, pace)))
    return response


def _refused(topic: TopicRequest, error: ErrorCode, message: str | None = None) -> TopicResponse:
    return TopicResponse(
        name=topic.name,
        partitions=[
            PartitionResponse(partition_index=index, error_code=error, error_message=message)
            for index in topic.partition_indexes
        ],
    )


def _partition(
    context: Context, topic: str, index: int, pace: YieldCounter
) -> StepGenerator[PartitionResponse]:
    if pace.is_due():
        yield None
    try:
        log = context.services.partitions.readable((topic, index)).log
        log.check_open()
    except OperatingError as error:
        return PartitionResponse(partition_index=index, error_code=code_of(error))
    response = PartitionResponse(partition_index=index)
    for one in list(log.producers.states.entries()):
        response.active_producers.append(
            ProducerState(
                producer_id=one.producer_id,
                producer_epoch=one.epoch,
                last_sequence=one.last_sequence,
                last_timestamp=one.last_timestamp_ms,
                coordinator_epoch=one.coordinator_epoch,
                current_txn_start_offset=one.transaction_first_offset,
            )
        )
        if pace.is_due():
            yield None
    return response
