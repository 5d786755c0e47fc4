"""CreateTopics (key 19), versions 2-7.

Behaviour: each topic has its own result; one named twice is an INVALID_REQUEST. -1 for partitions
and replication factor are `num.partitions` and `default.replication.factor`; with a manual
assignment both must be -1. A request with more than 10 000 partitions is refused as a whole with
POLICY_VIOLATION. With `validate_only` nothing is created and the answer is what it would have been.
The answer is sent when the topics are durable and can be written; REQUEST_TIMED_OUT if that takes
longer than allowed; it continues then.
v4 -1 by clients (accepted in every version, as in Kafka) · v5 flexible; partitions, replication
factor and the topic's whole configuration with sources · v6 quota errors, of which there are none ·
v7 topic id.

Where it differs from Kafka: names that collide in '.' and '_' are refused also within one request;
a `timeout_ms` below a second counts as one second.
"""

from collections.abc import Sequence
from typing import Final

from millstream.broker.requests.context import Context
from millstream.broker.requests.error_codes import code_of, text_of
from millstream.broker.requests.services import Services
from millstream.broker.requests.topic_changes import topic_defaults, within
from millstream.controller.errors import TooManyPartitions
from millstream.controller.image import TopicImage
from millstream.controller.topics import NewTopic
from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import BrokerId
from millstream.runtime.scheduler import StepGenerator, YieldCounter, run_on_loop
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

RESULTS_PER_TURN: Final = 20
"""Topics per step, between which others are served; each may have settings to describe."""

_FIRST_WITH_CONFIGS: Final = 5


async def handle(context: Context, request: CreateTopicsRequest) -> CreateTopicsResponse:
    """Create topics; the errors of those that cannot be created are in the answer."""
    services = context.services
    wanted = await run_on_loop(_wanted_steps(request))
    change = services.controller.create_topics(
        wanted, validate_only=request.validate_only, defaults=topic_defaults(services)
    )
    try:
        outcomes = await within(request.timeout_ms, change)
    except TimeoutError:
        return failed(request, ErrorCode.REQUEST_TIMED_OUT, context.version)
    except TooManyPartitions as error:  # of the whole request, so that each topic gets it
        outcomes = [without_frames(error)] * len(wanted)
    has_configs = context.version >= _FIRST_WITH_CONFIGS
    builder = _ResponseBuilder(services, has_configs=has_configs)
    return await run_on_loop(builder.steps(wanted, outcomes))


def failed(request: CreateTopicsRequest, error: ErrorCode, version: int) -> CreateTopicsResponse:
    """The error for every topic."""
    del version
    names = dict.fromkeys(topic.name for topic in request.topics)
    return CreateTopicsResponse(topics=[_refusal(name, error, error.text) for name in names])


def _wanted_steps(request: CreateTopicsRequest) -> StepGenerator[list[NewTopic]]:
    wanted = []
    pace = YieldCounter()
    for topic in request.topics:
        wanted.append(_new_topic(topic))
        if pace.is_due(1 + len(topic.assignments) + len(topic.configs)):
            yield None
    return wanted


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[
            (one.partition_index, tuple(map(BrokerId, one.broker_ids))) for one in topic.assignments
        ],
        configs={one.name: one.value for one in topic.configs},
    )


def _refusal(name: str, error: ErrorCode, text: str) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error, error_message=text)


class _ResponseBuilder:
    """Makes the answer; topics with the same settings share their description."""

    def __init__(self, services: Services, *, has_configs: bool) -> None:
        self._services = services
        self._has_configs = has_configs
        self._described: dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]] = {}

    def steps(
        self, wanted: Sequence[NewTopic], outcomes: Sequence[TopicImage | OperatingError]
    ) -> StepGenerator[CreateTopicsResponse]:
        """The answer, in steps."""
        results: dict[str, CreatableTopicResult] = {}
        pace = YieldCounter(RESULTS_PER_TURN)
        for topic, outcome in zip(wanted, outcomes, strict=True):
            # By name: one that is in the request twice has one answer.
            results[topic.name] = self._result(topic.name, outcome)
            if pace.is_due():
                yield None
        return CreateTopicsResponse(topics=list(results.values()))

    def _result(self, name: str, outcome: TopicImage | OperatingError) -> CreatableTopicResult:
        if isinstance(outcome, OperatingError):
            return _refusal(name, code_of(outcome), text_of(outcome))
        return CreatableTopicResult(
            name=name,
            topic_id=outcome.topic_id,
            error_message=None,
            num_partitions=len(outcome.partitions),
            replication_factor=len(outcome.partitions[0].replicas),
            configs=self._configs(outcome) if self._has_configs else [],
        )

    def _configs(self, topic: TopicImage) -> list[CreatableTopicConfigs]:
        key = tuple(sorted(topic.configs.items()))
        described = self._described.get(key)
        if described is None:
            described = self._described[key] = _describe(self._services, topic)
        return described


def _describe(services: Services, topic: TopicImage) -> list[CreatableTopicConfigs]:
    entries = services.configs.describe_topic(topic.configs, None)
    return [
        CreatableTopicConfigs(
            name=entry.key.name,
            value=None if entry.key.is_sensitive else entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.key.is_sensitive,
        )
        for entry in sorted(entries, key=lambda entry: entry.key.name)
    ]
