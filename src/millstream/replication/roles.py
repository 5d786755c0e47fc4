"""Which partitions this broker leads and which it follows, and how to look them up.

A partition's state is applied only when it is newer than the known one, by leader epoch and then by
partition epoch: late metadata is harmless.
"""

from collections.abc import Collection, Iterator, Mapping
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
from millstream.model.ids import BrokerId, Offset, TopicId, TopicPartition
from millstream.replication.cluster import ReplicationDependencies
from millstream.replication.errors import NotLeader
from millstream.replication.follower import (
    Follower,
    FollowerContext,
    FollowerCounts,
    FollowerState,
)
from millstream.replication.metadata import PartitionFacts, TopicFacts
from millstream.replication.partition import LeaderContext, LeaderFacts, Partition
from millstream.replication.readable import ReadableReplica
from millstream.replication.waiters import NetworkIterations, ReaderWaker
from millstream.runtime.scheduler import StepGenerator, chunked
from millstream.storage.log.log import Log
from millstream.storage.log_steps import LOGS_PER_TURN
from millstream.storage.manager.log_manager import LogManager, NewPartition
from millstream.storage.ports import LeadershipListener

INTERNAL_PREFIX: Final = "__"
"""Kafka's internal topics begin with it, and few others do."""

IdKey = tuple[bytes, int]
"""A topic id's 16 bytes and a partition; hashing a UUID costs more than the look-up."""

Name = tuple[str, int]
StateNumber = tuple[int, int]
"""Leader epoch and partition epoch: the larger is the newer."""


NOTHING_KNOWN: Final[StateNumber] = (-1, -1)


class FetcherManager(Protocol):
    """Fetches the partitions that this broker follows from their leaders."""

    def follow(self, follower: Follower) -> None:
        """Fetch the partition from now on; also called when its `state` changed."""

    def unfollow(self, follower: Follower) -> None:
        """Stop fetching it; responses under way for it are dropped."""

    def ready(self, follower: Follower) -> None:
        """A flush that it waited for is done: more may be fetched for it."""


class NoFetchers:
    """For a broker that fetches from no other broker: it leads everything it has."""

    def follow(self, follower: Follower) -> None: ...

    def unfollow(self, follower: Follower) -> None: ...

    def ready(self, follower: Follower) -> None: ...


class Planned(NamedTuple):
    """A partition to be led or followed, and the log that it needs."""

    wanted: NewPartition
    partition: PartitionFacts
    in_sync_min: int
    throttled: tuple[bool, bool] = (False, False)
    """Whether it is throttled while this broker leads it, and while it follows."""


def _state_number(partition: PartitionFacts) -> StateNumber:
    return partition.leader_epoch, partition.partition_epoch


def _facts(planned: Planned) -> LeaderFacts:
    partition = planned.partition
    return LeaderFacts(
        planned.wanted.topic_id,
        partition.leader,
        partition.leader_epoch,
        tuple(partition.replicas),
        tuple(partition.isr),
        planned.in_sync_min,
        partition.partition_epoch,
        (*partition.lost, *partition.full),
    )


class _SlotNames(TypedDict):
    topic: bytes
    topic_id: bytes
    partition: int


def _slot_names(leader: Partition) -> _SlotNames:
    topic, index = leader.partition
    return {"topic": topic.encode(), "topic_id": leader.topic_id.bytes, "partition": index}


class Roles(ReaderWaker):
    """The partitions of which this broker has a replica."""

    def __init__(
        self,
        logs: LogManager,
        table: SlotTable | None,
        *,
        broker_id: BrokerId | None,
        cluster: ReplicationDependencies | None,
        fetchers: FetcherManager | None,
        listeners: Mapping[str, LeadershipListener] | None,
        iterations: NetworkIterations | None,
    ) -> None:
        super().__init__(iterations)
        self._logs = logs
        self._table = table
        self._broker_id = broker_id
        """None: a standalone broker, which leads everything."""
        self.cluster = cluster or ReplicationDependencies(monotonic_s=logs.clock.monotonic_s)
        self.counts = FollowerCounts()
        self._fetchers = fetchers if fetchers is not None else NoFetchers()
        self._listeners = listeners or {}
        self._topics: dict[str, TopicFacts] = {}
        self._names: dict[bytes, str] = {}
        self._leaders: dict[Name, Partition] = {}
        self._leaders_by_id: dict[IdKey, Partition] = {}
        self._followers: dict[Name, Follower] = {}
        self._given_up: dict[Name, StateNumber] = {}
        """Partitions that were led until the session was lost, and their state at that time."""
        self._offline: dict[Name, OperatingError] = {}
        """Partitions that this broker should have but whose log cannot be used, and why."""
        self._without_room: dict[Name, bool] = {}
        """Those of them whose log could not be created for lack of space, and whether it is new."""
        self._context = LeaderContext(logs.flush, self._wake, self.cluster)
        self._follower_context = FollowerContext(
            logs.flush, self._wake, self.counts, self.cluster, self._fetchers.ready
        )
        self._changes = 0

    # -- lookup ----------------------------------------------------------------------------

    def get(self, partition: Name) -> Partition:
        """The partition's leader; raises NotLeader where another broker leads it, UnknownPartition
        where there is no such partition, StorageFailed when its log is offline.
        """
        leader = self._leaders.get(partition)
        if leader is None:
            raise self._lookup_error(partition)
        return leader

    def _lookup_error(self, partition: Name) -> OperatingError:
        offline = self._offline.get(partition)
        if offline is not None:
            return offline
        name = TopicPartition(*partition)
        topic = self._topics.get(name.topic)
        if topic is None or not 0 <= name.partition < len(topic.partitions):
            return UnknownPartition(name)
        return NotLeader(name)

    def find(self, key: tuple[str | bytes, int]) -> Partition | None:
        """The leader by the topic's name or the bytes of its id; if None, `get` raises why."""
        if isinstance(key[0], bytes):
            return self._leaders_by_id.get(key)  # type: ignore[arg-type]
        return self._leaders.get(key)  # type: ignore[arg-type]

    def get_by_id(self, topic_id: TopicId, index: int) -> Partition:
        """The same by the topic's id; raises UnknownTopicId when no topic has it."""
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

    def readable(self, partition: Name) -> ReadableReplica:
        """What a consumer may read: the leader, or else the replica that follows it (KIP-392)."""
        return self._leaders.get(partition) or self._followers.get(partition) or self.get(partition)

    def high_watermark_of(self, partition: Name) -> Offset | None:
        """As far as this broker knows; None where it neither leads nor follows the partition."""
        replica = self._leaders.get(partition) or self._followers.get(partition)
        return None if replica is None else replica.log.high_watermark

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

    # -- roles -----------------------------------------------------------------------------

    def _is_newer(self, topic: TopicFacts, partition: PartitionFacts) -> bool:
        known = self._known(TopicPartition(topic.name, partition.index))
        return known is None or _state_number(partition) > known

    def _known(self, name: Name) -> StateNumber | None:
        leader, follower = self._leaders.get(name), self._followers.get(name)
        if leader is not None:
            return leader.state[:2]
        return follower.state[:2] if follower is not None else self._given_up.get(name)

    def _assume_role(self, planned: Planned, log: Log) -> None:
        """Lead or follow the partition, unless the planned state is older than the known one."""
        if log.config is not planned.wanted.config:
            log.config = planned.wanted.config  # an existing log may have started with older ones
        name, partition = planned.wanted.partition, planned.partition
        self._offline.pop(name, None)
        self._without_room.pop(name, None)
        known = self._known(name)
        if self._broker_id in (None, partition.leader):
            leader = self._leaders.get(name)
            if leader is not None:
                # Also with the same epoch: `min.insync.replicas` may have changed.
                if _state_number(partition)[0] >= leader.leader_epoch:
                    self._changes += _state_number(partition)[0] > leader.leader_epoch
                    leader.configure(_facts(planned))
                return
            if known is None or _state_number(partition) > known:
                if self.cluster.may_lead():
                    self._lead(planned, log)
                elif known is None:
                    self._given_up[name] = NOTHING_KNOWN  # held, and any later metadata is newer
        elif known is None or _state_number(partition) > known:
            self._follow(planned, log)

    def _mark_offline(self, planned: Planned, error: OperatingError, *, is_new: bool) -> None:
        """The log cannot be created or used. A newer state does not apply to what was held before:
        requests that wait there are failed, and the next leader of an internal topic starts from
        its own log only.
        """
        name = planned.wanted.partition
        self._without_room.pop(name, None)
        if isinstance(error, DiskFull | TooManyOpenFiles):
            self._without_room[name] = is_new
        self._changes += name not in self._offline
        failure = (
            error if isinstance(error, StorageFailed) else StorageFailed(str(name), str(error))
        )
        self._offline[name] = failure
        known = self._known(name)
        if known is not None and _state_number(planned.partition) > known:
            leader, follower = self._leaders.get(name), self._followers.get(name)
            if leader is not None:
                self._stop_leading(leader, failure)
            if follower is not None:
                self._stop_following(follower)
            self._changes += 1

    def _throttle(self, planned: Planned) -> None:
        name = planned.wanted.partition
        leader, follower = self._leaders.get(name), self._followers.get(name)
        if leader is not None:
            leader.is_throttled = planned.throttled[0]
        if follower is not None:
            follower.is_throttled = planned.throttled[1]

    def _lead(self, planned: Planned, log: Log) -> None:
        follower = self._followers.get(log.partition)
        if follower is not None:
            self._stop_following(follower)
        self._given_up.pop(log.partition, None)
        leader = Partition(log, _facts(planned), self._context)
        log.can_be_replaced = leader.can_be_replaced
        name = leader.partition
        self._leaders[name] = leader
        self._leaders_by_id[leader.topic_id.bytes, name.partition] = leader
        # What clients may write to internal topics is decided for each request, in Python.
        if self._table is not None and not name.topic.startswith(INTERNAL_PREFIX):
            self._table.add(leader.slot, **_slot_names(leader))
        self._changes += 1
        listener = self._listeners.get(name.topic)
        if listener is not None:
            leader.watch_leadership(listener)

    def _follow(self, planned: Planned, log: Log) -> None:
        leader, partition = self._leaders.get(log.partition), planned.partition
        if leader is not None:
            self._stop_leading(leader, NotLeader(leader.partition))
        self._given_up.pop(log.partition, None)
        state = FollowerState(
            partition.leader_epoch,
            partition.partition_epoch,
            partition.leader,
            is_in_sync=self._broker_id in partition.isr,
        )
        follower = self._followers.get(log.partition)
        if follower is None:
            follower = Follower(log, planned.wanted.topic_id, state, self._follower_context)
            log.can_be_replaced = follower.can_be_replaced
            self._followers[log.partition] = follower
            self._throttle(planned)  # before its first fetch
        else:
            follower.follow(state)
        self._changes += 1
        self._fetchers.follow(follower)

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
        self._fetchers.unfollow(follower)

    def close_all_leaderships(self) -> None:
        """The session is lost: resign every leadership now (I-18)."""
        for name, leader in list(self._leaders.items()):
            self._given_up[name] = leader.state[:2]
            self._stop_leading(leader, NotLeader(leader.partition))
        self._changes += 1

    # -- logs that failed ------------------------------------------------------------------

    @property
    def has_lost(self) -> bool:
        """Whether some log of this broker has failed, or may have."""
        return any(
            one.failure is not None or one.failed_partitions for one in self._logs.directories
        ) or any(name not in self._without_room for name in self._offline)

    def find_lost_steps(self) -> StepGenerator[list[tuple[TopicId, int]]]:
        """Partitions of this broker whose log has failed, in steps.

        Not those that could not be created for lack of space: they are retried.
        """
        found: list[tuple[TopicId, int]] = []
        held = [*self._leaders.values(), *self._followers.values()]
        for part in chunked(held, LOGS_PER_TURN):
            found += [
                (one.topic_id, one.partition.partition)
                for one in part
                if one.log.failure is not None
            ]
            yield None
        for name in self._offline.keys() - self._without_room.keys():
            topic = self._topics.get(name[0])
            if topic is not None and name not in self._leaders and name not in self._followers:
                found.append((topic.topic_id, name[1]))
        return found

    @property
    def has_full(self) -> bool:
        """Whether some log directory has no room."""
        return any(one.is_full for one in self._logs.directories)

    def find_full_steps(self) -> StepGenerator[list[tuple[TopicId, int]]]:
        """Partitions of this broker whose log cannot grow for lack of space, in steps."""
        found: list[tuple[TopicId, int]] = []
        if not self.has_full:
            return found
        held = [*self._leaders.values(), *self._followers.values()]
        for part in chunked(held, LOGS_PER_TURN):
            found += [
                (one.topic_id, one.partition.partition)
                for one in part
                if one.log.context.owner.is_full and one.log.failure is None
            ]
            yield None
        for name in self._without_room:
            topic = self._topics.get(name[0])
            if topic is not None and name not in self._leaders and name not in self._followers:
                found.append((topic.topic_id, name[1]))
        return found

    # -- periodic --------------------------------------------------------------------------

    def check_lag_steps(self) -> StepGenerator[None]:
        """Let every leader check whether its followers keep up, in steps.

        At least twice per `replica.lag.time.max.ms`: a follower that was caught up at one check is
        considered so until the next.
        """
        for part in chunked(list(self._leaders.values()), LOGS_PER_TURN):
            for leader in part:
                leader.check_lag()
            yield None

    def store_high_watermarks_steps(self) -> StepGenerator[None]:
        """Store the high watermarks of replicated partitions, in steps: a restarted leader knows
        only what the file says until its followers have fetched.
        """
        logs = [one.log for one in self._leaders.values() if one.others is not None]
        logs += [one.log for one in self._followers.values()]
        if logs:
            yield from self._logs.store_high_watermarks_steps(logs)

    @property
    def under_replicated_count(self) -> int:
        """Partitions led by this broker of which some replica is not in sync."""
        states = [leader.state for leader in self._leaders.values()]
        return sum(len(one.isr) < len(one.replicas) for one in states)

    @property
    def under_min_isr_count(self) -> int:
        """Partitions led by this broker that refuse acks=all."""
        states = [leader.state for leader in self._leaders.values()]
        return sum(len(one.isr) < one.effective_min_isr for one in states)
