"""CreatePartitions (key 37), versions 0-3.

Behaviour: `count` is the new total; no increase is INVALID_PARTITIONS. Manual assignments are for
the new partitions only, each with as many replicas as the topic has (INVALID_REPLICA_ASSIGNMENT). A
topic named twice is an INVALID_REQUEST for it; with more than 10 000 new partitions the whole
request is refused with POLICY_VIOLATION. With `validate_only` nothing is changed. The answer is
sent when the partitions are durable and can be written; REQUEST_TIMED_OUT if that takes longer than
allowed; it continues then.
v2 flexible · v3 as v2 (for quota errors, of which there are none).

Where it differs from Kafka: a `timeout_ms` below a second counts as one second; a topic may have
100 000 partitions.
"""

from collections.abc import Sequence

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.broker.requests.topic_changes import within
from millstream.controller.errors import TooManyPartitions
from millstream.controller.topics import MorePartitions
from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import BrokerId
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_on_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)


async def handle(context: Context, request: CreatePartitionsRequest) -> CreatePartitionsResponse:
    """Add partitions; the errors of those topics that cannot grow are in the answer."""
    wanted = await run_on_loop(_wanted_steps(request))
    change = context.services.controller.create_partitions(
        wanted, validate_only=request.validate_only
    )
    try:
        outcomes = await within(request.timeout_ms, change)
    except TimeoutError:
        return failed(request, ErrorCode.REQUEST_TIMED_OUT, context.version)
    except TooManyPartitions as error:  # of the whole request, so that each topic gets it
        outcomes = [without_frames(error)] * len(wanted)
    return await run_on_loop(_answer_steps(wanted, outcomes))


def failed(
    request: CreatePartitionsRequest, error: ErrorCode, version: int
) -> CreatePartitionsResponse:
    """The error for every topic."""
    del version
    return CreatePartitionsResponse(
        results=[
            CreatePartitionsTopicResult(name=topic.name, error_code=error, error_message=error.text)
            for topic in request.topics
        ]
    )


def _wanted_steps(request: CreatePartitionsRequest) -> StepGenerator[list[MorePartitions]]:
    wanted = []
    pace = YieldCounter()
    for topic in request.topics:
        wanted.append(_more(topic))
        if pace.is_due(1 + len(topic.assignments or ())):
            yield None
    return wanted


def _answer_steps(
    wanted: Sequence[MorePartitions], outcomes: Sequence[OperatingError | None]
) -> StepGenerator[CreatePartitionsResponse]:
    results: dict[str, CreatePartitionsTopicResult] = {}
    pace = YieldCounter()
    for more, outcome in zip(wanted, outcomes, strict=True):
        results[more.name] = _result(more.name, outcome)
        if pace.is_due():
            yield None
    return CreatePartitionsResponse(results=list(results.values()))


def _more(topic: CreatePartitionsTopic) -> MorePartitions:
    assignments = topic.assignments
    by_hand = None
    if assignments is not None:
        by_hand = [tuple(map(BrokerId, one.broker_ids)) for one in assignments]
    return MorePartitions(name=topic.name, total_count=topic.count, assignments=by_hand)


def _result(name: str, outcome: OperatingError | None) -> CreatePartitionsTopicResult:
    if outcome is None:
        return CreatePartitionsTopicResult(name=name)
    return CreatePartitionsTopicResult(
        name=name, error_code=code_of(outcome), error_message=text_of(outcome)
    )
