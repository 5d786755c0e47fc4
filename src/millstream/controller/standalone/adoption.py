"""What to do with partitions in the log directories that the metadata does not know.

Two cases must be distinguished. A data directory of Apache Kafka: its topics are adopted. And the
logs of a topic of ours whose deletion was interrupted by a crash: if adopted, the topic would be
back, perhaps with half of its partitions. The file that a deletion leaves tells them apart, by
topic id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from millstream.controller.image import ClusterImage, PartitionImage, TopicImage
from millstream.controller.topics import new_topic_id
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from millstream.model.limits import ADOPTED_HOLES_MAX
from millstream.runtime.randomness import Randomness

ADOPTED_TOPIC_CONFIGS: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Kafka keeps settings in its metadata log, which is not read. A topic that was kept forever, or
compacted, must not lose its data to a default: everything is kept until an operator changes it."""

_COMPACTED: Final[Mapping[str, str]] = {"cleanup.policy": "compact", "segment.bytes": "104857600"}
_INTERNAL_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    "__consumer_offsets": {**_COMPACTED, "compression.type": "producer"},
    "__transaction_state": {**_COMPACTED, "compression.type": "uncompressed"},
}
"""Kafka creates its internal topics with these, so they are known without the metadata log."""


@dataclass(slots=True)
class Adoption:
    """What to do with the partitions that were found."""

    adopted: list[TopicImage] = field(default_factory=list)
    """New topics, with the ids from their directories."""
    changed: list[TopicImage] = field(default_factory=list)
    """Known topics that got partitions or later epochs."""
    to_delete: list[TopicPartition] = field(default_factory=list)
    """Logs of deleted topics, to be removed."""
    refused: dict[TopicPartition, str] = field(default_factory=dict)
    """Left untouched, with the reason: it is not known what they belong to."""
    missing: list[TopicPartition] = field(default_factory=list)
    """Partitions of adopted topics that were not found; they begin empty."""


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """One partition in a log directory."""

    index: int
    topic_id: TopicId | None
    """None in directories of Kafka before 2.8."""
    leader_epoch: LeaderEpoch
    """The last epoch in its log, -1 without any."""


class Adopter:
    """Decides on found partitions, topic by topic; the result is in `outcome`."""

    def __init__(
        self,
        image: ClusterImage,
        deleted: Sequence[TopicImage],
        *,
        broker_id: BrokerId,
        randomness: Randomness,
    ) -> None:
        self._image = image
        self._deleted_ids = {topic.topic_id for topic in deleted}
        self._deleted_names = {topic.name for topic in deleted}
        self._broker_id = broker_id
        self._randomness = randomness
        self.outcome = Adoption()

    def take(self, name: str, findings: Sequence[FoundPartition]) -> None:
        """Decide on all partitions found under one topic name."""
        known = self._image.topics.get(name)
        left = [one for one in findings if not self._is_deleted(name, one, known)]
        if not left:
            return
        if known is not None:
            self._take_known(known, left)
            return
        ids = {one.topic_id for one in left if one.topic_id is not None}
        if len(ids) > 1:
            self._refuse(name, left, f"its partitions have {len(ids)} different topic ids")
            return
        topic_id = ids.pop() if ids else new_topic_id(self._randomness)
        if topic_id in self._image.topics_by_id:
            other = self._image.topics_by_id[topic_id].name
            self._refuse(name, left, f"its topic id is that of topic {other!r}")
            return
        configs = {**ADOPTED_TOPIC_CONFIGS, **_INTERNAL_CONFIGS.get(name, {})}
        topic = self._extended(TopicImage(name, topic_id, (), configs), left)
        if topic is not None:
            self.outcome.adopted.append(topic)

    def _is_deleted(self, name: str, one: FoundPartition, known: TopicImage | None) -> bool:
        """Whether this log is left over from a deleted topic."""
        is_ours = known is not None and one.topic_id in (None, known.topic_id)
        is_dead = (
            one.topic_id in self._deleted_ids
            if one.topic_id is not None
            else name in self._deleted_names
        )
        if is_ours or not is_dead:
            return False
        self.outcome.to_delete.append(TopicPartition(name, one.index))
        return True

    def _take_known(self, known: TopicImage, findings: Sequence[FoundPartition]) -> None:
        strangers = [one for one in findings if one.topic_id not in (None, known.topic_id)]
        self._refuse(known.name, strangers, "it belongs to another topic of this name")
        ours = [one for one in findings if one not in strangers]
        beyond = [
            one for one in ours if one.index >= len(known.partitions) and one.topic_id is None
        ]
        self._refuse(known.name, beyond, "the topic has no such partition")
        topic = self._extended(known, [one for one in ours if one not in beyond])
        if topic is not None and topic != known:
            self.outcome.changed.append(topic)

    def _extended(self, topic: TopicImage, findings: Sequence[FoundPartition]) -> TopicImage | None:
        """The topic with all partitions up to the highest found, and epochs above those in the
        logs.
        """
        count = max((one.index + 1 for one in findings), default=0)
        count = max(count, len(topic.partitions))
        found = {one.index: one for one in findings}
        new = range(len(topic.partitions), count)
        if count - len(topic.partitions) > len(findings) + ADOPTED_HOLES_MAX:
            self._refuse(topic.name, findings, f"of its {count} partitions nearly all are missing")
            return None
        holes = [TopicPartition(topic.name, index) for index in new if index not in found]
        self.outcome.missing.extend(holes)
        only_replica = (self._broker_id,)
        added = [
            PartitionImage(index, only_replica, only_replica, self._broker_id, LeaderEpoch(0), 0)
            for index in new
        ]
        partitions = tuple(_above(one, found.get(one.index)) for one in (*topic.partitions, *added))
        return topic._replace(partitions=partitions)

    def _refuse(self, name: str, findings: Sequence[FoundPartition], reason: str) -> None:
        for one in findings:
            self.outcome.refused[TopicPartition(name, one.index)] = reason


def _above(partition: PartitionImage, found: FoundPartition | None) -> PartitionImage:
    """The partition with an epoch that its log has not seen: this broker is its new leader."""
    if found is None or found.leader_epoch < partition.leader_epoch:
        return partition
    return partition._replace(
        leader_epoch=LeaderEpoch(found.leader_epoch + 1),
        partition_epoch=partition.partition_epoch + 1,
    )
