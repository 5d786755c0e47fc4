"""Which partitions a query reads: `subscribe`, `subscribePattern` or `assign`.

Like the connector: a pattern matches anywhere in the name, internal topics are never read, and
`assign` reads those of its partitions that exist. A topic of `subscribe` or `assign` that does not
exist is an error, raised at once: reading nothing would look like an empty topic.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from millstream.model.ids import TopicPartition
from millstream.model.limits import TOPIC_NAME_LENGTH_MAX
from millstream.pipelines.errors import RangeInvalid
from millstream.pipelines.java_regex import compile_java_pattern

_TOPIC_NAME: Final = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_NAME_LENGTH_MAX}}}")


def is_topic_name(name: str) -> bool:
    """Whether a broker would accept the name."""
    return bool(_TOPIC_NAME.fullmatch(name)) and name not in (".", "..")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """A topic as the cluster's metadata has it."""

    partition_count: int
    is_internal: bool = False

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in range(self.partition_count)]


Topics = Mapping[str, TopicFacts]


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Topics by name."""

    topics: tuple[str, ...]

    def selected(self, topics: Topics) -> frozenset[TopicPartition]:
        check_topics_exist(self.topics, topics)
        return _partitions_of(self.topics, topics)

    def __str__(self) -> str:
        return f"Subscribe[{', '.join(self.topics)}]"


@dataclass(frozen=True, slots=True)
class SubscribePattern:
    """Topics whose name contains a match of a Java regular expression."""

    pattern: str

    def selected(self, topics: Topics) -> frozenset[TopicPartition]:
        found = compile_java_pattern(self.pattern)
        return _partitions_of([topic for topic in topics if found.search(topic)], topics)

    def __str__(self) -> str:
        return f"SubscribePattern[{self.pattern}]"


@dataclass(frozen=True, slots=True)
class Assign:
    """Partitions by number."""

    partitions: frozenset[TopicPartition]

    @property
    def topics(self) -> tuple[str, ...]:
        return tuple(sorted({one.topic for one in self.partitions}))

    def selected(self, topics: Topics) -> frozenset[TopicPartition]:
        check_topics_exist(self.topics, topics)
        return _partitions_of(self.topics, topics) & self.partitions

    def __str__(self) -> str:
        return f"Assign[{', '.join(map(str, sorted(self.partitions)))}]"


Subscription = Subscribe | SubscribePattern | Assign


def check_topics_exist(named: Iterable[str], topics: Topics) -> None:
    """A new broker may lack metadata: the shell retries before it raises this."""
    if missing := sorted(set(named) - set(topics)):
        raise RangeInvalid(
            f"unknown topic {', '.join(missing)}; create it first, or check the spelling"
        )


def _partitions_of(names: Iterable[str], topics: Topics) -> frozenset[TopicPartition]:
    return frozenset(
        partition
        for name in names
        if not topics[name].is_internal
        for partition in topics[name].partitions_of(name)
    )
