"""All partitions of which this broker has a replica, kept in step with the cluster's metadata.

Logs are created and deleted here; leading and following are in `roles.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from millstream.kernels.slots import SlotTable
from millstream.model.errors import OperatingError
from millstream.model.ids import BrokerId, TopicPartition
from millstream.model.limits import LOGS_PER_SYNC_MAX
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.follower import NO_LEADER
from millstream.replication.metadata import (
    ChangeFacts,
    ImageFacts,
    PartitionFacts,
    TopicFacts,
    TopicSettings,
)
from millstream.replication.roles import FetcherManager, Planned, Roles
from millstream.replication.throttle import (
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    listed_partitions,
)
from millstream.replication.waiters import NetworkIterations
from millstream.runtime.scheduler import StepGenerator, chunked, run_blocking
from millstream.storage.log.log import Log
from millstream.storage.log_steps import LOGS_PER_TURN
from millstream.storage.manager.log_manager import LogManager, NewPartition
from millstream.storage.ports import LeadershipListener

MIN_IN_SYNC: Final = "min.insync.replicas"


class Partitions(Roles):
    """The registry; `attach` once at the start, then `apply` every change."""

    def __init__(
        self,
        logs: LogManager,
        settings: TopicSettings,
        table: SlotTable | None = None,
        *,
        broker_id: BrokerId | None = None,
        cluster: ReplicationDependencies | None = None,
        fetchers: FetcherManager | None = None,
        listeners: Mapping[str, LeadershipListener] | None = None,
        iterations: NetworkIterations | None = None,
    ) -> None:
        """`cluster` and `fetchers`: for a broker in a cluster. `listeners`: by topic, the
        coordinators that keep their state in the topic's partitions that this broker leads.
        """
        super().__init__(
            logs,
            table,
            broker_id=broker_id,
            cluster=cluster,
            fetchers=fetchers,
            listeners=listeners,
            iterations=iterations,
        )
        self._settings = settings

    # -- metadata --------------------------------------------------------------------------

    def attach(self, image: ImageFacts) -> None:
        """Lead and follow what the metadata says, with existing logs; create missing ones."""
        run_blocking(self.apply_image_steps(image))

    def apply_image_steps(self, image: ImageFacts) -> StepGenerator[None]:
        """`attach` in steps; also used whenever a whole image arrives instead of a change."""
        gone = [
            topic
            for topic in self._topics.values()
            if topic.name not in image.topics or image.topics[topic.name].topic_id != topic.topic_id
        ]
        yield from self._drop_topics_steps(gone)
        topics = [(topic, topic.partitions) for topic in image.topics.values()]
        yield from self._leave_steps(topics)
        yield from self._hold_steps(topics, is_new=False)
        self._changes += 1

    def apply(self, change: ChangeFacts) -> None:
        """Create and delete logs and leaders; apply changed settings."""
        run_blocking(self.prepare_steps(change))
        run_blocking(self.follow_up_steps(change))

    def prepare_steps(self, change: ChangeFacts) -> StepGenerator[None]:
        """The part of `apply` that must be done before others see the change, in steps."""
        names = {topic.name for topic in change.created}
        # A topic that was deleted and created again: the old logs are where the new ones must be.
        yield from self._drop_topics_steps(
            [topic for topic in change.deleted if topic.name in names]
        )
        topics = [(topic, topic.partitions) for topic in change.created]
        topics += [
            (grown.topic, grown.topic.partitions[grown.first_new_partition :])
            for grown in change.grown
        ]
        yield from self._hold_steps(topics, is_new=True)

    def follow_up_steps(self, change: ChangeFacts) -> StepGenerator[None]:
        """The part of `apply` that is done when others see the change, in steps."""
        moved = [(one.topic, (one.partition,)) for one in change.moved]
        yield from self._drop_topics_steps(change.deleted)
        yield from self._leave_steps(moved)
        yield from self._hold_steps(moved, is_new=False)
        yield from self._reconfigure_steps(change.reconfigured)
        if change.brokers_reconfigured:
            yield from self._reconfigure_steps(list(self._topics.values()))
        self._changes += 1

    def delete_strays_steps(self, image: ImageFacts) -> StepGenerator[list[TopicPartition]]:
        """Delete the logs of partitions that have no replica here any more, in steps; returns them.

        For a broker that was down, with its first image and before it attaches: a log of an older
        topic of the same name would block the new one.
        """
        strays = [
            log.partition for log in self._logs if not self._has_replica_here(log, image.topics)
        ]
        yield from self._logs.delete_steps(strays)
        return strays

    def _has_replica_here(self, log: Log, topics: Mapping[str, TopicFacts]) -> bool:
        topic, topic_id = topics.get(log.partition.topic), log.context.topic_id
        if topic is None or topic_id not in (None, topic.topic_id):
            return False
        index = log.partition.partition
        return any(one.index == index and self._is_replica(one) for one in topic.partitions)

    @property
    def has_missing(self) -> bool:
        """Whether there are partitions whose logs could not be created for lack of space."""
        return bool(self._without_room)

    def retry_missing(self) -> None:
        """Create the logs that could not be created before: there may be space by now."""
        run_blocking(self.retry_missing_steps())

    def retry_missing_steps(self) -> StepGenerator[None]:
        """`retry_missing` in steps; must not run during a change."""
        for name, is_new in list(self._without_room.items()):
            topic = self._topics[name[0]]
            facts = [one for one in topic.partitions if one.index == name[1]]
            for planned in self._planned(topic, facts):
                yield from self._hold_one_steps(planned, is_new=is_new)

    def replaceable(self) -> list[TopicPartition]:
        """Failed logs in usable directories that another broker leads, and that it knows as lost:
        no election depends on what they have.
        """
        return [
            name
            for directory in self._logs.directories
            if directory.failure is None
            for name in [*directory.failed_partitions]
            if self._is_replaceable(name)
        ]

    def _is_replaceable(self, name: TopicPartition) -> bool:
        follower, topic = self._followers.get(name), self._topics.get(name.topic)
        if follower is None or follower.log.failure is None or topic is None:
            return False
        return any(
            one.index == name.partition and self._broker_id in one.lost
            for one in topic.partitions
            if one.leader not in (NO_LEADER, self._broker_id)
        )

    def begin_again_steps(self, name: TopicPartition) -> StepGenerator[None]:
        """Follow with an empty log instead of a failed one, in steps; not during a change."""
        if not self._is_replaceable(name):
            return
        topic = self._topics[name.topic]
        facts = [one for one in topic.partitions if one.index == name.partition]
        dropped = self._dropped(*name)
        yield from self._logs.delete_steps([name] if dropped else [])
        for planned in self._planned(topic, facts):
            yield from self._hold_one_steps(planned, is_new=True)

    # -- logs ------------------------------------------------------------------------------

    def _is_replica(self, partition: PartitionFacts) -> bool:
        return self._broker_id is None or self._broker_id in partition.replicas

    def _planned(self, topic: TopicFacts, partitions: Sequence[PartitionFacts]) -> list[Planned]:
        config = self._settings.log_config(topic.configs)
        in_sync_min = self._in_sync_min(topic)
        leading, follow_up_steps = (
            listed_partitions(topic.configs.get(key), self._broker_id)
            for key in (LEADER_REPLICAS, FOLLOWER_REPLICAS)
        )
        return [
            Planned(
                NewPartition(TopicPartition(topic.name, one.index), topic.topic_id, config),
                one,
                in_sync_min,
                (one.index in leading, one.index in follow_up_steps),
            )
            for one in partitions
            if self._is_replica(one)
        ]

    def _hold_steps(
        self, topics: Sequence[tuple[TopicFacts, Sequence[PartitionFacts]]], *, is_new: bool
    ) -> StepGenerator[None]:
        """Take many topics together: their logs share their syncs."""
        planned: list[Planned] = []
        noted = 0
        for topic, partitions in topics:
            self._topics[topic.name] = topic
            self._names[topic.topic_id.bytes] = topic.name
            planned += self._planned(topic, partitions)
            if len(planned) - noted >= LOGS_PER_TURN:
                noted = len(planned)
                yield None
        for group in chunked(planned, LOGS_PER_SYNC_MAX):
            try:
                logs = yield from self._logs.create_steps(
                    [one.wanted for one in group], is_new=is_new
                )
            except OperatingError:
                # One log that cannot be created must not block the others.
                for one in group:
                    yield from self._hold_one_steps(one, is_new=is_new)
                continue
            for part in chunked(list(zip(group, logs, strict=True)), LOGS_PER_TURN):
                for one, log in part:
                    self._assume_role(one, log)
                    self._throttle(one)
                if len(planned) > LOGS_PER_TURN:
                    yield None

    def _hold_one_steps(self, planned: Planned, *, is_new: bool) -> StepGenerator[None]:
        try:
            logs = yield from self._logs.create_steps([planned.wanted], is_new=is_new)
        except OperatingError as error:
            self._mark_offline(planned, error, is_new=is_new)
            return
        self._assume_role(planned, logs[0])
        self._throttle(planned)

    def _in_sync_min(self, topic: TopicFacts) -> int:
        return int(self._settings.topic_text(topic.configs, MIN_IN_SYNC))

    def _drop_topics_steps(self, topics: Sequence[TopicFacts]) -> StepGenerator[None]:
        names: list[TopicPartition] = []
        for topic in topics:
            if self._names.get(topic.topic_id.bytes) is None:
                continue  # it was dropped when one of the same name was made
            self._topics.pop(topic.name, None)
            self._names.pop(topic.topic_id.bytes, None)
            for part in chunked(topic.partitions, LOGS_PER_TURN):
                names += [name for one in part if (name := self._dropped(topic.name, one.index))]
                if len(names) > LOGS_PER_TURN:
                    yield None
        # In a failed directory they stay; the directory has recorded that itself.
        yield from self._logs.delete_steps(names)

    def _leave_steps(
        self, topics: Sequence[tuple[TopicFacts, Sequence[PartitionFacts]]]
    ) -> StepGenerator[None]:
        """Give up partitions that have no replica here any more, and delete their logs."""
        names: list[TopicPartition] = []
        done = 0
        for topic, partitions in topics:
            for one in partitions:
                done += 1
                if not self._is_replica(one) and self._is_newer(topic, one):
                    dropped = self._dropped(topic.name, one.index)
                    names += [dropped] if dropped is not None else []
            if done >= LOGS_PER_TURN:
                done = 0
                yield None
        yield from self._logs.delete_steps(names)

    def _dropped(self, topic: str, index: int) -> TopicPartition | None:
        """Stop serving the partition; returns its name if this broker held it."""
        name = TopicPartition(topic, index)
        self._offline.pop(name, None)
        self._without_room.pop(name, None)
        given_up = self._given_up.pop(name, None)
        leader, follower = self._leaders.get(name), self._followers.get(name)
        if leader is not None:
            self._stop_leading(leader, None)
        if follower is not None:
            self._stop_following(follower)
        self._changes += 1
        is_held = leader is not None or follower is not None or given_up is not None
        return name if is_held else None

    def _reconfigure_steps(self, topics: Sequence[TopicFacts]) -> StepGenerator[None]:
        done = 0
        for topic in topics:
            self._topics[topic.name] = topic
            for planned in self._planned(topic, topic.partitions):
                name = planned.wanted.partition
                held = self._leaders.get(name) or self._followers.get(name)
                if held is not None:
                    self._assume_role(planned, held.log)
                    self._throttle(planned)
                done += 1
                if not done % LOGS_PER_TURN:
                    yield None
