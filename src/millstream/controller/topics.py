"""Checks and plans for creating, growing and configuring topics. No I/O.

Rules and their order are Kafka's, so that a client gets the same error code where several apply.
One difference: colliding names are also refused within one request.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from millstream.controller.errors import (
    InvalidPartitionCount,
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidTopicName,
    NullConfigValue,
    TooManyPartitions,
    TopicExists,
    UnknownTopic,
)
from millstream.controller.image import (
    ClusterImage,
    GrownTopic,
    PartitionImage,
    TopicImage,
)
from millstream.controller.placement import Replicas, place
from millstream.model.errors import OperatingError, without_frames
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId
from millstream.model.limits import (
    PARTITIONS_PER_REQUEST_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    TOPIC_NAME_LENGTH_MAX,
)
from millstream.runtime.randomness import Randomness
from millstream.runtime.scheduler import StepGenerator, chunked, run_blocking

TOPICS_PER_TURN: Final = 50
"""Topics checked and placed per step: a few milliseconds."""

USE_DEFAULT: Final = -1
"""As a partition count or replication factor: use the broker's default."""

INTERNAL_TOPICS: Final = frozenset(
    {"__consumer_offsets", "__transaction_state", "__share_group_state"}
)
CLUSTER_METADATA_TOPIC: Final = "__cluster_metadata"

_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")

CheckConfigs = Callable[[Mapping[str, str]], None]


class TopicDefaults(NamedTuple):
    """`num.partitions` and `default.replication.factor`."""

    partition_count: int = 1
    replication_factor: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic to be created."""

    name: str
    partition_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Sequence[tuple[int, Sequence[BrokerId]]] = ()
    """Manually assigned replicas by partition; then both counts above must be -1."""
    configs: Mapping[str, str | None] = field(default_factory=dict)
    """A setting without a value is allowed on the wire and refused by Kafka."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MorePartitions:
    """A topic to be grown to `total_count` partitions."""

    name: str
    total_count: int
    assignments: Sequence[Sequence[BrokerId]] | None = None
    """Manually assigned replicas of the new partitions."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decisions about topics need besides the image."""

    defaults: TopicDefaults
    check_configs: CheckConfigs
    """Raises for settings that a topic may not have."""
    randomness: Randomness


# -- names -------------------------------------------------------------------------------------


def is_internal(name: str) -> bool:
    """Whether it is one of Kafka's own topics."""
    return name in INTERNAL_TOPICS


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicName unless Kafka allows the name."""
    if not name:
        raise InvalidTopicName("a topic's name must not be empty")
    if name in (".", ".."):
        raise InvalidTopicName(f"a topic must not be named {name!r}")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise InvalidTopicName(
            f"a topic's name of {len(name)} characters; at most {TOPIC_NAME_LENGTH_MAX} are allowed"
        )
    if _LEGAL_NAME.fullmatch(name) is None:
        raise InvalidTopicName(
            f"the topic's name {name!r} has characters other than"
            " ASCII letters, digits, '.', '_' and '-'"
        )


def colliding_name(name: str) -> str:
    """Equal for names that differ only in '.' and '_', which metric names cannot distinguish."""
    return name.replace(".", "_")


# -- creation ----------------------------------------------------------------------------------


def plan_creation(
    image: ClusterImage, wanted: Sequence[NewTopic], rules: Rules
) -> list[TopicImage | OperatingError]:
    """The planned topics, or why each was refused, in the order of the request.

    Raises TooManyPartitions when the request as a whole is too large.
    """
    return run_blocking(plan_creation_steps(image, wanted, rules))


def plan_creation_steps(
    image: ClusterImage, wanted: Sequence[NewTopic], rules: Rules
) -> StepGenerator[list[TopicImage | OperatingError]]:
    """`plan_creation` in steps."""
    _check_request_size(wanted, rules.defaults)
    taken = {colliding_name(name): name for name in image.topics}
    twice = _repeated(topic.name for topic in wanted)
    planned: list[TopicImage | OperatingError] = []
    for part in chunked(wanted, TOPICS_PER_TURN):
        for topic in part:
            try:
                if topic.name in twice:
                    raise InvalidRequest(f"topic {topic.name!r} is in the request twice")
                _check_new_name(image, topic.name, taken)
                planned.append(_new_topic(image, topic, rules))
                taken[colliding_name(topic.name)] = topic.name
            except OperatingError as error:
                planned.append(without_frames(error))
        if len(planned) < len(wanted):
            yield None
    return planned


def _check_request_size(wanted: Sequence[NewTopic], defaults: TopicDefaults) -> None:
    total = 0
    for topic in wanted:
        count = len(topic.assignments) or topic.partition_count
        total += defaults.partition_count if count == USE_DEFAULT else max(0, count)
    if total > PARTITIONS_PER_REQUEST_MAX:
        raise TooManyPartitions(requested=total, limit=PARTITIONS_PER_REQUEST_MAX)


def _check_new_name(image: ClusterImage, name: str, taken: Mapping[str, str]) -> None:
    if name == CLUSTER_METADATA_TOPIC:
        raise InvalidRequest(f"{name} cannot be created: it is Kafka's own log of metadata")
    if name in image.topics:
        raise TopicExists(name)
    check_topic_name(name)
    other = taken.get(colliding_name(name))
    if other is not None:
        raise InvalidTopicName(f"topic {name!r} collides with topic {other!r}")


def _new_topic(image: ClusterImage, topic: NewTopic, rules: Rules) -> TopicImage:
    configs = _checked_configs(topic.configs, rules)
    replicas = _assigned(image, topic) if topic.assignments else _placed(image, topic, rules)
    partitions = _new_partitions(image, replicas, first_index=0)
    topic_id = new_topic_id(rules.randomness)
    return TopicImage(topic.name, topic_id, partitions, configs)


def _checked_configs(configs: Mapping[str, str | None], rules: Rules) -> dict[str, str]:
    valued = {name: value for name, value in configs.items() if value is not None}
    if len(valued) < len(configs):
        missing = ", ".join(name for name, value in configs.items() if value is None)
        raise NullConfigValue(f"settings without a value: {missing}")
    rules.check_configs(valued)
    return valued


def _placed(image: ClusterImage, topic: NewTopic, rules: Rules) -> list[Replicas]:
    factor, count = topic.replication_factor, topic.partition_count
    if factor != USE_DEFAULT and factor < 1:
        raise InvalidReplicationFactor(
            f"replication factor {factor}: it must be positive, or -1 for the broker's default"
        )
    if count != USE_DEFAULT and count < 1:
        raise InvalidPartitionCount(
            f"{count} partitions: there must be at least one, or -1 for the broker's default"
        )
    return place(
        list(image.brokers.values()),
        partition_count=rules.defaults.partition_count if count == USE_DEFAULT else count,
        replication_factor=rules.defaults.replication_factor if factor == USE_DEFAULT else factor,
        randomness=rules.randomness,
    )


def _assigned(image: ClusterImage, topic: NewTopic) -> list[Replicas]:
    if topic.replication_factor != USE_DEFAULT:
        raise InvalidRequest("with a manual assignment the replication factor must be -1")
    if topic.partition_count != USE_DEFAULT:
        raise InvalidRequest("with a manual assignment the partition count must be -1")
    by_index: dict[int, Replicas] = {}
    factor: int | None = None
    for index, brokers in topic.assignments:
        if index in by_index:
            raise InvalidReplicaAssignment(f"partition {index} is assigned twice")
        check_assignment(image, brokers, index=index, factor=factor)
        factor = len(brokers)
        by_index[index] = tuple(brokers)
    if set(by_index) != set(range(len(by_index))):
        raise InvalidReplicaAssignment("partitions must be numbered from 0 without gaps")
    return [by_index[index] for index in range(len(by_index))]


def check_assignment(
    image: ClusterImage, brokers: Sequence[BrokerId], *, index: int, factor: int | None
) -> None:
    """Raise InvalidReplicaAssignment unless these brokers can hold one more partition."""
    if not brokers:
        raise InvalidReplicaAssignment(f"no replicas are assigned for partition {index}")
    for broker_id in brokers:
        if broker_id not in image.brokers:
            raise InvalidReplicaAssignment(
                f"partition {index} is assigned to broker {broker_id}, which does not exist"
            )
    if len(set(brokers)) < len(brokers):
        raise InvalidReplicaAssignment(f"partition {index} has a broker twice: {list(brokers)}")
    if factor is not None and len(brokers) != factor:
        raise InvalidReplicaAssignment(
            f"partition {index} has {len(brokers)} replicas, the others have {factor}"
        )
    if all(image.brokers[broker_id].is_fenced for broker_id in brokers):
        raise InvalidReplicaAssignment(f"all brokers of partition {index} are fenced")


def _new_partitions(
    image: ClusterImage, replicas: Sequence[Replicas], *, first_index: int
) -> tuple[PartitionImage, ...]:
    partitions = []
    for index, brokers in enumerate(replicas, start=first_index):
        isr = tuple(one for one in brokers if not image.brokers[one].is_fenced)
        partitions.append(PartitionImage(index, brokers, isr, isr[0], LeaderEpoch(0), 0))
    return tuple(partitions)


def new_topic_id(randomness: Randomness) -> TopicId:
    """A random id whose text does not begin with '-': on a command line that is an option."""
    while True:
        topic_id = UUID(bytes=randomness.bytes(16), version=4)
        # '-' is 62 in URL-safe base64, whose first character is the first six bits.
        if topic_id.int >> 122 != 62:
            return TopicId(topic_id)


# -- growth and configuration ------------------------------------------------------------------


def plan_growth(
    image: ClusterImage, wanted: Sequence[MorePartitions], rules: Rules
) -> list[GrownTopic | OperatingError]:
    """The topics with their new partitions, or why each was refused; raises TooManyPartitions."""
    return run_blocking(plan_growth_steps(image, wanted, rules))


def plan_growth_steps(
    image: ClusterImage, wanted: Sequence[MorePartitions], rules: Rules
) -> StepGenerator[list[GrownTopic | OperatingError]]:
    """`plan_growth` in steps."""
    _check_growth_size(image, wanted)
    twice = _repeated(more.name for more in wanted)
    planned: list[GrownTopic | OperatingError] = []
    for part in chunked(wanted, TOPICS_PER_TURN):
        for more in part:
            try:
                if more.name in twice:
                    raise InvalidRequest(f"topic {more.name!r} is in the request twice")
                planned.append(_grown(image, more, rules))
            except OperatingError as error:
                planned.append(without_frames(error))
        if len(planned) < len(wanted):
            yield None
    return planned


def _check_growth_size(image: ClusterImage, wanted: Sequence[MorePartitions]) -> None:
    total = 0
    for more in wanted:
        topic = image.topics.get(more.name)
        if topic is not None and more.total_count <= PARTITIONS_PER_TOPIC_MAX:
            total += max(0, more.total_count - len(topic.partitions))
    if total > PARTITIONS_PER_REQUEST_MAX:
        raise TooManyPartitions(requested=total, limit=PARTITIONS_PER_REQUEST_MAX)


def _grown(image: ClusterImage, more: MorePartitions, rules: Rules) -> GrownTopic:
    topic = image.topics.get(more.name)
    if topic is None:
        raise UnknownTopic(more.name)
    count = len(topic.partitions)
    if more.total_count <= count:
        raise InvalidPartitionCount(
            f"topic {more.name!r} has {count} partitions; {more.total_count} is no increase"
        )
    if more.total_count > PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionCount(
            f"{more.total_count} partitions; a topic may have {PARTITIONS_PER_TOPIC_MAX}"
        )
    replicas = _more_replicas(image, topic, more, rules)
    added = _new_partitions(image, replicas, first_index=count)
    return GrownTopic(topic._replace(partitions=topic.partitions + added), count)


def _more_replicas(
    image: ClusterImage, topic: TopicImage, more: MorePartitions, rules: Rules
) -> list[Replicas]:
    factor = len(topic.partitions[0].replicas)
    first_index = len(topic.partitions)
    added_count = more.total_count - first_index
    if more.assignments is None:
        return place(
            list(image.brokers.values()),
            partition_count=added_count,
            replication_factor=factor,
            randomness=rules.randomness,
        )
    if len(more.assignments) != added_count:
        raise InvalidReplicaAssignment(
            f"{added_count} partitions to be added, {len(more.assignments)} assignments given"
        )
    for index, brokers in enumerate(more.assignments, start=first_index):
        check_assignment(image, brokers, index=index, factor=factor)
    return [tuple(brokers) for brokers in more.assignments]


def _repeated(names: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    return {name for name in names if name in seen or seen.add(name)}  # type: ignore[func-returns-value]
