"""DeleteTopics (key 20), versions 1-6.

Behaviour: topics by name, from v6 on also by id: an unknown id is UNKNOWN_TOPIC_ID, and another
topic that got the name meanwhile is not touched. A topic given twice, by both name and id, or by
neither, is an INVALID_REQUEST for that topic. With `delete.topic.enable=false` nothing is deleted:
TOPIC_DELETION_DISABLED (before v3 INVALID_REQUEST). The answer is sent when the deletion is durable
and the logs cannot be read any more; REQUEST_TIMED_OUT if that takes longer than allowed; it
continues then. Files are deleted later, in the background.
v4 flexible · v5 error messages · v6 topic ids.

Where it differs from Kafka: a `timeout_ms` below a second counts as one second; results come in the
order of the request where Kafka shuffles them.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.broker.requests.topic_changes import within
from millstream.controller.errors import UnknownTopic
from millstream.controller.image import ClusterImage
from millstream.model.errors import OperatingError, UnknownTopicId
from millstream.model.ids import TopicId
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_on_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)

DELETE_ENABLED: Final = "delete.topic.enable"

_FIRST_WITH_IDS: Final = 6
_FIRST_WITH_DISABLED_CODE: Final = 3
_NO_ID: Final = UUID(int=0)


async def handle(context: Context, request: DeleteTopicsRequest) -> DeleteTopicsResponse:
    """Delete topics; the errors of those that cannot be deleted are in the answer."""
    services, version = context.services, context.version
    if not services.configs.get_bool(DELETE_ENABLED):
        has_code = version >= _FIRST_WITH_DISABLED_CODE
        error = ErrorCode.TOPIC_DELETION_DISABLED if has_code else ErrorCode.INVALID_REQUEST
        return failed(request, error, version)
    results, wanted = await run_on_loop(
        _sort_steps(_requested_topics(request, version), services.image)
    )
    try:
        outcomes = await within(
            request.timeout_ms, services.controller.delete_topics([one.target for one in wanted])
        )
    except TimeoutError:
        return failed(request, ErrorCode.REQUEST_TIMED_OUT, version)
    await run_on_loop(_fill_steps(wanted, outcomes))
    return DeleteTopicsResponse(responses=results)


def failed(request: DeleteTopicsRequest, error: ErrorCode, version: int) -> DeleteTopicsResponse:
    """The error for every topic of the request."""
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(
                name=one.name, topic_id=one.topic_id, error_code=error, error_message=error.text
            )
            for one in _requested_topics(request, version)
        ]
    )


def _requested_topics(request: DeleteTopicsRequest, version: int) -> list[DeleteTopicState]:
    if version >= _FIRST_WITH_IDS:
        return request.topics
    return [DeleteTopicState(name=name) for name in request.topic_names]


class _TopicDeletion:
    """One topic of the request: its answer, and what the controller has to delete."""

    __slots__ = ("is_by_name", "result", "target")

    def __init__(self, one: DeleteTopicState, image: ClusterImage) -> None:
        self.is_by_name = one.name is not None
        self.result = DeletableTopicResult(name=one.name, topic_id=one.topic_id)
        self.target: str | TopicId = TopicId(one.topic_id)
        topic = image.topics_by_id.get(self.target)
        if one.name is not None and one.topic_id == _NO_ID:
            self.target = one.name
            topic = image.topics.get(one.name)
        if topic is not None:
            # By its id from here on: the request means the topic that has the name now.
            self.target = self.result.topic_id = topic.topic_id
            self.result.name = topic.name

    def refuse(self, reason: str) -> None:
        self.result.error_code = ErrorCode.INVALID_REQUEST
        self.result.error_message = reason

    def fill(self, outcome: OperatingError | None) -> None:
        if outcome is None:
            return
        if self.is_by_name and isinstance(outcome, UnknownTopicId):
            outcome = UnknownTopic(self.result.name or "")  # deleted by another request meanwhile
        self.result.error_code = code_of(outcome)
        self.result.error_message = text_of(outcome)


def _fill_steps(
    wanted: Sequence[_TopicDeletion], outcomes: Sequence[OperatingError | None]
) -> StepGenerator[None]:
    pace = YieldCounter()
    for deletion, outcome in zip(wanted, outcomes, strict=True):
        deletion.fill(outcome)
        if pace.is_due():
            yield None


def _sort_steps(
    states: list[DeleteTopicState], image: ClusterImage
) -> StepGenerator[tuple[list[DeletableTopicResult], list[_TopicDeletion]]]:
    """The answers in their order, and the deletions for the controller."""
    results: list[DeletableTopicResult] = []
    wanted: dict[str | TopicId, _TopicDeletion] = {}
    pace = YieldCounter()
    for one in states:
        if pace.is_due():
            yield None
        if (one.name is None) == (one.topic_id == _NO_ID):
            answer = DeletableTopicResult(name=one.name, topic_id=one.topic_id)
            answer.error_code = ErrorCode.INVALID_REQUEST
            answer.error_message = "either a name or an id must be given"
            results.append(answer)
            continue
        deletion = _TopicDeletion(one, image)
        first = wanted.setdefault(deletion.target, deletion)
        if first is deletion:
            results.append(deletion.result)
        else:
            # One answer for both: the client could not tell them apart.
            first.refuse("the topic is in the request twice")
    return results, [one for one in wanted.values() if not one.result.error_code]
