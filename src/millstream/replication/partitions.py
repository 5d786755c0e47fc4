"""All partitions of which this broker has a replica, kept in step with the cluster's metadata.

It leads some and follows others. A partition's state is taken only when it is newer than what is
known, by leader epoch and then by partition epoch: metadata that comes late is harmless.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypedDict
from uuid import UUID

from millstream.kernels.slots import SlotTable
from millstream.model.errors import (
    DiskFull,
    OperatingError,
    StorageFailed,
    TooManyOpenFiles,
    UnknownPartition,
    UnknownTopicId,
)
from millstream.model.ids import BrokerId, TopicId, TopicPartition
from millstream.model.limits import LOGS_PER_SYNC_MAX
from millstream.replication.cluster import ClusterSeams
from millstream.replication.errors import NotLeader
from millstream.replication.follower import (
    Follower,
    FollowerCounts,
    FollowerHome,
    FollowerState,
)
from millstream.replication.metadata import (
    ChangeFacts,
    ImageFacts,
    PartitionFacts,
    TopicFacts,
    TopicSettings,
)
from millstream.replication.partition import LeaderFacts, LeaderHome, Partition
from millstream.replication.waking import Waking
from millstream.runtime.turns import Steps, in_parts, run_whole
from millstream.storage.log import Log
from millstream.storage.log_steps import LOGS_PER_TURN
from millstream.storage.manager import LogManager, NewPartition

MIN_IN_SYNC: Final = "min.insync.replicas"

INTERNAL_PREFIX: Final = "__"
"""Kafka's internal topics begin with it, and few others do."""

IdKey = tuple[bytes, int]
"""A topic id's 16 bytes and a partition; hashing a UUID costs more than the look-up."""

Name = tuple[str, int]
StateNumber = tuple[int, int]
"""Leader epoch and partition epoch: the larger is the newer."""


class FollowedPartitions(Protocol):
    """Told what to fetch, and from whom."""

    def follow(self, follower: Follower) -> None:
        """A partition is followed from now on, or its `state` is another one."""

    def unfollow(self, follower: Follower) -> None:
        """It is not any more; what is under way for it does not count."""


class Partitions(Waking):
    """The registry; `attach` once at the start, then `apply` every change."""

    def __init__(
        self,
        logs: LogManager,
        settings: TopicSettings,
        table: SlotTable | None = None,
        *,
        broker_id: BrokerId | None = None,
    ) -> None:
        super().__init__()
        self._logs = logs
        self._settings = settings
        self._table = table
        self._broker_id = broker_id
        """None: this broker leads everything there is."""
        self.cluster = ClusterSeams(monotonic_s=logs.clock.monotonic_s)
        """What a broker in a cluster sets before it attaches."""
        self.counts = FollowerCounts()
        self.fetching: FollowedPartitions | None = None
        """Who fetches for the partitions that are followed; set before the first of them."""
        self._topics: dict[str, TopicFacts] = {}
        self._names: dict[bytes, str] = {}
        self._leaders: dict[Name, Partition] = {}
        self._leaders_by_id: dict[IdKey, Partition] = {}
        self._followers: dict[Name, Follower] = {}
        self._given_up: dict[Name, StateNumber] = {}
        """Partitions that were led until the session was lost, and the state they were led in."""
        self._offline: dict[Name, OperatingError] = {}
        """Partitions that should be here and whose log cannot be used, and why."""
        self._without_room: dict[Name, bool] = {}
        """Those of them whose log could not be made for want of room, and whether it is new."""
        self._home = LeaderHome(logs.flush, self._wake, self.cluster)
        self._follower_home = FollowerHome(logs.flush, self.counts, self.cluster)
        self._changes = 0

    # -- looking up ------------------------------------------------------------------------

    def get(self, partition: Name) -> Partition:
        """The leader; NotLeader where another broker is it, UnknownPartition where there is no
        such partition, StorageFailed when its log is offline.
        """
        leader = self._leaders.get(partition)
        if leader is None:
            raise self._why_not(partition)
        return leader

    def _why_not(self, partition: Name) -> OperatingError:
        offline = self._offline.get(partition)
        if offline is not None:
            return offline
        name = TopicPartition(*partition)
        topic = self._topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return UnknownPartition(name)
        return NotLeader(name)

    def find(self, key: tuple[str | bytes, int]) -> Partition | None:
        """The leader by the topic's name or the bytes of its id; None: ask `get` for the reason."""
        if isinstance(key[0], bytes):
            return self._leaders_by_id.get(key)  # type: ignore[arg-type]
        return self._leaders.get(key)  # type: ignore[arg-type]

    def get_by_id(self, topic_id: TopicId, index: int) -> Partition:
        """The same by the topic's id; UnknownTopicId when no topic has it."""
        return self.get_by_id_bytes(topic_id.bytes, index)

    def get_by_id_bytes(self, topic_id: bytes, index: int) -> Partition:
        """The same for an id as it is on the wire."""
        leader = self._leaders_by_id.get((topic_id, index))
        if leader is not None:
            return leader
        return self.get((self.name_of(topic_id), index))

    def name_of(self, topic_id: bytes) -> str:
        """The topic that has the id; raises UnknownTopicId."""
        name = self._names.get(topic_id)
        if name is None:
            raise UnknownTopicId(TopicId(UUID(bytes=topic_id)))
        return name

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._leaders.values()))

    def __len__(self) -> int:
        return len(self._leaders)

    @property
    def followers(self) -> Collection[Follower]:
        """The partitions that are followed."""
        return self._followers.values()

    def follower(self, partition: Name) -> Follower | None:
        return self._followers.get(partition)

    @property
    def generation(self) -> int:
        """Grows when a look-up may have another outcome than before, or something failed."""
        return self._changes + sum(one.failure_count for one in self._logs.directories)

    # -- metadata --------------------------------------------------------------------------

    def attach(self, image: ImageFacts) -> None:
        """Lead and follow what the metadata says, with the logs that are there; make those that
        are not.
        """
        run_whole(self.taking(image))

    def taking(self, image: ImageFacts) -> Steps[None]:
        """`attach` in steps, and whenever the whole image comes instead of what changed."""
        gone = [
            topic
            for topic in self._topics.values()
            if topic.name not in image.topics or image.topics[topic.name].topic_id != topic.topic_id
        ]
        yield from self._dropping(gone)
        topics = [(topic, topic.partitions) for topic in image.topics.values()]
        yield from self._leaving(topics)
        yield from self._holding(topics, is_new=False)
        self._changes += 1

    def apply(self, change: ChangeFacts) -> None:
        """Create and delete logs and leaders; take over changed settings."""
        run_whole(self.preparing(change))
        run_whole(self.following(change))

    def preparing(self, change: ChangeFacts) -> Steps[None]:
        """The part of `apply` that must be done before others see the change, in steps."""
        names = {topic.name for topic in change.created}
        # A topic that was deleted and made anew: the old logs stand where the new ones shall be.
        yield from self._dropping([topic for topic in change.deleted if topic.name in names])
        topics = [(topic, topic.partitions) for topic in change.created]
        topics += [
            (grown.topic, grown.topic.partitions[grown.first_new_partition :])
            for grown in change.grown
        ]
        yield from self._holding(topics, is_new=True)

    def following(self, change: ChangeFacts) -> Steps[None]:
        """The part of `apply` that is done when others see the change, in steps."""
        moved = [(one.topic, (one.partition,)) for one in change.moved]
        yield from self._dropping(change.deleted)
        yield from self._leaving(moved)
        yield from self._holding(moved, is_new=False)
        yield from self._reconfiguring(change.reconfigured)
        if change.brokers_reconfigured:
            yield from self._reconfiguring(list(self._topics.values()))
        self._changes += 1

    def deleting_strays(self, image: ImageFacts) -> Steps[list[TopicPartition]]:
        """Delete the logs of partitions that have no replica here any more, in steps; which.

        For a broker that was away, with its first whole image and before it attaches: a log of an
        older topic of the same name would stand in the way of the new one.
        """
        strays = [log.partition for log in self._logs if not self._is_at_home(log, image.topics)]
        yield from self._logs.deleting(strays)
        return strays

    def _is_at_home(self, log: Log, topics: Mapping[str, TopicFacts]) -> bool:
        topic, topic_id = topics.get(log.partition.topic), log.home.topic_id
        if topic is None or topic_id not in (None, topic.topic_id):
            return False
        index = log.partition.partition
        return any(one.index == index and self._is_replica(one) for one in topic.partitions)

    def close_all_leaderships(self) -> None:
        """The session is gone: nothing is led any more, from now on (I-18)."""
        for name, leader in list(self._leaders.items()):
            self._given_up[name] = leader.state[:2]
            self._stop_leading(leader, NotLeader(leader.partition))
        self._changes += 1

    @property
    def has_missing(self) -> bool:
        """Whether there are partitions whose logs could not be made for want of room."""
        return bool(self._without_room)

    def try_again(self) -> None:
        """Make the logs that could not be made before: there may be room by now."""
        run_whole(self.trying_again())

    def trying_again(self) -> Steps[None]:
        """`try_again` in steps; not while a change goes on."""
        for name, is_new in list(self._without_room.items()):
            topic = self._topics[name[0]]
            facts = [one for one in topic.partitions if one.index == name[1]]
            for planned in self._planned(topic, facts):
                yield from self._holding_one(planned, is_new=is_new)

    # -- logs ------------------------------------------------------------------------------

    def _is_replica(self, partition: PartitionFacts) -> bool:
        return self._broker_id is None or self._broker_id in partition.replicas

    def _planned(self, topic: TopicFacts, partitions: Sequence[PartitionFacts]) -> list["_Planned"]:
        config = self._settings.log_config(topic.configs)
        in_sync_min = self._in_sync_min(topic)
        return [
            _Planned(
                NewPartition(TopicPartition(topic.name, one.index), topic.topic_id, config),
                one,
                in_sync_min,
            )
            for one in partitions
            if self._is_replica(one)
        ]

    def _holding(
        self, topics: Sequence[tuple[TopicFacts, Sequence[PartitionFacts]]], *, is_new: bool
    ) -> Steps[None]:
        """Many topics together: the logs of all of them share their syncs."""
        planned: list[_Planned] = []
        noted = 0
        for topic, partitions in topics:
            self._topics[topic.name] = topic
            self._names[topic.topic_id.bytes] = topic.name
            planned += self._planned(topic, partitions)
            if len(planned) - noted >= LOGS_PER_TURN:
                noted = len(planned)
                yield None
        for group in in_parts(planned, LOGS_PER_SYNC_MAX):
            try:
                logs = yield from self._logs.creating([one.wanted for one in group], is_new=is_new)
            except OperatingError:
                # One that cannot be must not keep the others from being.
                for one in group:
                    yield from self._holding_one(one, is_new=is_new)
                continue
            for part in in_parts(list(zip(group, logs, strict=True)), LOGS_PER_TURN):
                for one, log in part:
                    self._take(one, log)
                if len(planned) > LOGS_PER_TURN:
                    yield None

    def _holding_one(self, planned: "_Planned", *, is_new: bool) -> Steps[None]:
        name = planned.wanted.partition
        try:
            logs = yield from self._logs.creating([planned.wanted], is_new=is_new)
        except OperatingError as error:
            self._without_room.pop(name, None)
            if isinstance(error, DiskFull | TooManyOpenFiles):
                self._without_room[name] = is_new
            self._changes += name not in self._offline
            self._offline[name] = (
                error if isinstance(error, StorageFailed) else StorageFailed(str(name), str(error))
            )
            return
        self._take(planned, logs[0])

    def _in_sync_min(self, topic: TopicFacts) -> int:
        return int(self._settings.topic_text(topic.configs, MIN_IN_SYNC))

    def _dropping(self, topics: Sequence[TopicFacts]) -> Steps[None]:
        names: list[TopicPartition] = []
        for topic in topics:
            if self._names.get(topic.topic_id.bytes) is None:
                continue  # it was dropped when one of the same name was made
            self._topics.pop(topic.name, None)
            self._names.pop(topic.topic_id.bytes, None)
            for part in in_parts(topic.partitions, LOGS_PER_TURN):
                names += [name for one in part if (name := self._dropped(topic.name, one.index))]
                if len(names) > LOGS_PER_TURN:
                    yield None
        # Of a directory that failed they stay, which it noted itself.
        yield from self._logs.deleting(names)

    def _leaving(
        self, topics: Sequence[tuple[TopicFacts, Sequence[PartitionFacts]]]
    ) -> Steps[None]:
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
        yield from self._logs.deleting(names)

    def _dropped(self, topic: str, index: int) -> TopicPartition | None:
        """The partition, if it was held: nobody reads or writes it any more."""
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

    def _reconfiguring(self, topics: Sequence[TopicFacts]) -> Steps[None]:
        done = 0
        for topic in topics:
            self._topics[topic.name] = topic
            for planned in self._planned(topic, topic.partitions):
                name = planned.wanted.partition
                held = self._leaders.get(name) or self._followers.get(name)
                if held is not None:
                    self._take(planned, held.log)
                done += 1
                if not done % LOGS_PER_TURN:
                    yield None

    # -- roles -----------------------------------------------------------------------------

    def _is_newer(self, topic: TopicFacts, partition: PartitionFacts) -> bool:
        known = self._known(TopicPartition(topic.name, partition.index))
        return known is None or _number(partition) > known

    def _known(self, name: Name) -> StateNumber | None:
        leader, follower = self._leaders.get(name), self._followers.get(name)
        if leader is not None:
            return leader.state[:2]
        return follower.state[:2] if follower is not None else self._given_up.get(name)

    def _take(self, planned: "_Planned", log: Log) -> None:
        """Lead or follow the partition, unless that is older than what is known of it."""
        if log.config is not planned.wanted.config:
            log.config = planned.wanted.config  # of a log that was there: the start may know less
        name, partition = planned.wanted.partition, planned.partition
        self._offline.pop(name, None)
        self._without_room.pop(name, None)
        known = self._known(name)
        if self._broker_id in (None, partition.leader):
            leader = self._leaders.get(name)
            if leader is not None:
                # Also what is not newer: `min.insync.replicas` may be another.
                if _number(partition)[0] >= leader.leader_epoch:
                    self._changes += _number(partition)[0] > leader.leader_epoch
                    leader.configure(_facts(planned))
                return
            if known is None or _number(partition) > known:
                self._lead(planned, log)
        elif known is None or _number(partition) > known:
            self._follow(planned, log)

    def _lead(self, planned: "_Planned", log: Log) -> None:
        follower = self._followers.get(log.partition)
        if follower is not None:
            self._stop_following(follower)
        self._given_up.pop(log.partition, None)
        leader = Partition(log, _facts(planned), self._home)
        name = leader.partition
        self._leaders[name] = leader
        self._leaders_by_id[leader.topic_id.bytes, name.partition] = leader
        # What clients may write to internal topics is decided for each request, in Python.
        if self._table is not None and not name.topic.startswith(INTERNAL_PREFIX):
            self._table.add(leader.slot, **_slot_names(leader))
        self._changes += 1

    def _follow(self, planned: "_Planned", log: Log) -> None:
        leader, partition = self._leaders.get(log.partition), planned.partition
        if leader is not None:
            self._stop_leading(leader, NotLeader(leader.partition))
        self._given_up.pop(log.partition, None)
        state = FollowerState(partition.leader_epoch, partition.partition_epoch, partition.leader)
        follower = self._followers.get(log.partition)
        if follower is None:
            follower = Follower(log, planned.wanted.topic_id, state, self._follower_home)
            self._followers[log.partition] = follower
        else:
            follower.follow(state)
        self._changes += 1
        if self.fetching is not None:
            self.fetching.follow(follower)

    def _stop_leading(self, leader: Partition, error: OperatingError | None) -> None:
        name = leader.partition
        del self._leaders[name]
        self._leaders_by_id.pop((leader.topic_id.bytes, name.partition), None)
        if self._table is not None:
            self._table.remove(leader.slot, **_slot_names(leader))
        leader.close(error)

    def _stop_following(self, follower: Follower) -> None:
        del self._followers[follower.partition]
        follower.close()
        if self.fetching is not None:
            self.fetching.unfollow(follower)

    # -- by the clock ----------------------------------------------------------------------

    def checking_lag(self) -> Steps[None]:
        """Every leader looks whether its followers keep up, in steps.

        At least twice in `replica.lag.time.max.ms`: what was caught up then counts until the next.
        """
        for part in in_parts(list(self._leaders.values()), LOGS_PER_TURN):
            for leader in part:
                leader.check_lag()
            yield None

    def storing_high_watermarks(self) -> Steps[None]:
        """Of partitions with more than one replica, in steps: a restarted leader of one knows no
        more than the file says until its followers have been heard.
        """
        logs = [one.log for one in self._leaders.values() if one.others is not None]
        logs += [one.log for one in self._followers.values()]
        if logs:
            yield from self._logs.storing_high_watermarks(logs)

    @property
    def under_replicated_count(self) -> int:
        """Partitions led here of which some replica is not in sync."""
        states = [leader.state for leader in self._leaders.values()]
        return sum(len(one.isr) < len(one.replicas) for one in states)

    @property
    def under_min_isr_count(self) -> int:
        """Partitions led here that take no acks=all."""
        states = [leader.state for leader in self._leaders.values()]
        return sum(len(one.isr) < one.in_sync_wanted for one in states)


class _Planned(NamedTuple):
    """A partition to be led or followed, and what its log has to be."""

    wanted: NewPartition
    partition: PartitionFacts
    in_sync_min: int


def _number(partition: PartitionFacts) -> StateNumber:
    return partition.leader_epoch, partition.partition_epoch


def _facts(planned: _Planned) -> LeaderFacts:
    partition = planned.partition
    return LeaderFacts(
        planned.wanted.topic_id,
        partition.leader,
        partition.leader_epoch,
        tuple(partition.replicas),
        tuple(partition.isr),
        planned.in_sync_min,
        partition.partition_epoch,
    )


class _SlotNames(TypedDict):
    topic: bytes
    topic_id: bytes
    partition: int


def _slot_names(leader: Partition) -> _SlotNames:
    topic, index = leader.partition
    return {"topic": topic.encode(), "topic_id": leader.topic_id.bytes, "partition": index}
