"""All partitions that this broker leads, kept in step with the cluster's metadata."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, TypedDict
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
from millstream.replication.deadlines import Deadlines, Timers
from millstream.replication.metadata import (
    ChangeFacts,
    ImageFacts,
    PartitionFacts,
    TopicFacts,
    TopicSettings,
)
from millstream.replication.partition import LeaderFacts, LeaderHome, Partition
from millstream.runtime.turns import Steps, in_parts, run_whole
from millstream.storage.log import Log
from millstream.storage.log_steps import LOGS_PER_TURN
from millstream.storage.manager import LogManager, NewPartition

MIN_IN_SYNC: Final = "min.insync.replicas"

INTERNAL_PREFIX: Final = "__"
"""Kafka's internal topics begin with it, and few others do."""

IdKey = tuple[bytes, int]
"""A topic id's 16 bytes and a partition; hashing a UUID costs more than the look-up."""


class Partitions:
    """The registry; `attach` once at the start, then `apply` every change."""

    def __init__(
        self,
        logs: LogManager,
        settings: TopicSettings,
        table: SlotTable | None = None,
        *,
        broker_id: BrokerId | None = None,
    ) -> None:
        self._logs = logs
        self._settings = settings
        self._table = table
        self._broker_id = broker_id
        """None: this broker leads everything there is."""
        self._topics: dict[str, TopicFacts] = {}
        self._names: dict[bytes, str] = {}
        self._leaders: dict[tuple[str, int], Partition] = {}
        self._leaders_by_id: dict[IdKey, Partition] = {}
        self._offline: dict[tuple[str, int], OperatingError] = {}
        """Partitions that should be here and whose log cannot be used, and why."""
        self._without_room: dict[tuple[str, int], bool] = {}
        """Those of them whose log could not be made for want of room, and whether it is new."""
        self._home = LeaderHome(logs.flush, self._wake)
        self._changes = 0
        self._moved: dict[Partition, None] = {}
        self._timers: Timers | None = None
        self._deadlines: Deadlines | None = None
        self.after_late_wake: Callable[[], None] = lambda: None
        """Lets answers leave that became ready outside a wake-up of the network."""
        self._is_wake_due = False
        self.is_wake_coming: Callable[[], bool] = lambda: False
        """Whether somebody calls `wake_readers` soon in any case: then no timer is needed."""

    # -- looking up ------------------------------------------------------------------------

    def get(self, partition: tuple[str, int]) -> Partition:
        """The leader; UnknownPartition without one, StorageFailed when its log is offline."""
        leader = self._leaders.get(partition)
        if leader is None:
            name = TopicPartition(*partition)
            raise self._offline.get(partition) or UnknownPartition(name)
        return leader

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
    def generation(self) -> int:
        """Grows when a look-up may have another outcome than before, or something failed."""
        return self._changes + sum(one.failure_count for one in self._logs.directories)

    # -- metadata --------------------------------------------------------------------------

    def attach(self, image: ImageFacts) -> None:
        """Lead what the metadata says, with the logs that are there; make those that are not."""
        topics = [(topic, topic.partitions) for topic in image.topics.values()]
        run_whole(self._leading(topics, is_new=False))
        self._changes += 1

    def apply(self, change: ChangeFacts) -> None:
        """Create and delete logs and leaders; take over changed settings."""
        run_whole(self.preparing(change))
        run_whole(self.following(change))

    def preparing(self, change: ChangeFacts) -> Steps[None]:
        """The part of `apply` that must be done before others see the change, in steps."""
        topics = [(topic, topic.partitions) for topic in change.created]
        topics += [
            (grown.topic, grown.topic.partitions[grown.first_new_partition :])
            for grown in change.grown
        ]
        yield from self._leading(topics, is_new=True)

    def following(self, change: ChangeFacts) -> Steps[None]:
        """The part of `apply` that is done when others see the change, in steps."""
        yield from self._dropping(change.deleted)
        yield from self._reconfiguring(change.reconfigured)
        if change.brokers_reconfigured:
            yield from self._reconfiguring(list(self._topics.values()))
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
            facts = next(one for one in topic.partitions if one.index == name[1])
            yield from self._leading_one(self._planned(topic, [facts])[0], is_new=is_new)

    def _planned(self, topic: TopicFacts, partitions: Sequence[PartitionFacts]) -> list["_Planned"]:
        config = self._settings.log_config(topic.configs)
        in_sync_min = self._in_sync_min(topic)
        return [
            _Planned(
                NewPartition(TopicPartition(topic.name, one.index), topic.topic_id, config),
                _facts(topic, one, in_sync_min),
            )
            for one in partitions
            if self._broker_id in (None, one.leader)
        ]

    def _leading(
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
                    yield from self._leading_one(one, is_new=is_new)
                continue
            for part in in_parts(list(zip(group, logs, strict=True)), LOGS_PER_TURN):
                for one, log in part:
                    self._lead(one, log)
                if len(planned) > LOGS_PER_TURN:
                    yield None

    def _leading_one(self, planned: "_Planned", *, is_new: bool) -> Steps[None]:
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
        self._lead(planned, logs[0])

    def _lead(self, planned: "_Planned", log: Log) -> None:
        if log.config is not planned.wanted.config:
            log.config = planned.wanted.config  # of a log that was there: the start may know less
        self._add(Partition(log, planned.facts, self._home))
        self._changes += 1

    def _in_sync_min(self, topic: TopicFacts) -> int:
        return int(self._settings.topic_text(topic.configs, MIN_IN_SYNC))

    def _add(self, leader: Partition) -> None:
        name = leader.partition
        self._offline.pop(name, None)
        self._without_room.pop(name, None)
        self._leaders[name] = leader
        self._leaders_by_id[leader.topic_id.bytes, name.partition] = leader
        # What clients may write to internal topics is decided for each request, in Python.
        if self._table is not None and not name.topic.startswith(INTERNAL_PREFIX):
            self._table.add(leader.slot, **_slot_names(leader))

    def _dropping(self, topics: Sequence[TopicFacts]) -> Steps[None]:
        names: list[TopicPartition] = []
        for topic in topics:
            self._topics.pop(topic.name, None)
            self._names.pop(topic.topic_id.bytes, None)
            for part in in_parts(topic.partitions, LOGS_PER_TURN):
                names += [name for one in part if (name := self._dropped(topic.name, one.index))]
                if len(names) > LOGS_PER_TURN:
                    yield None
        # Of a directory that failed they stay, which it noted itself.
        yield from self._logs.deleting(names)

    def _dropped(self, topic: str, index: int) -> TopicPartition | None:
        """The partition, if it was led: nobody reads or writes it any more."""
        name = TopicPartition(topic, index)
        self._offline.pop(name, None)
        self._without_room.pop(name, None)
        leader = self._leaders.pop(name, None)
        if leader is None:
            return None
        self._changes += 1
        self._leaders_by_id.pop((leader.topic_id.bytes, index), None)
        if self._table is not None:
            self._table.remove(leader.slot, **_slot_names(leader))
        leader.close()
        return name

    def _reconfiguring(self, topics: Sequence[TopicFacts]) -> Steps[None]:
        done = 0
        for topic in topics:
            self._topics[topic.name] = topic
            config = self._settings.log_config(topic.configs)
            in_sync_min = self._in_sync_min(topic)
            for one in topic.partitions:
                leader = self._leaders.get((topic.name, one.index))
                if leader is not None:
                    leader.log.config = config
                    leader.configure(_facts(topic, one, in_sync_min))
                done += 1
                if not done % LOGS_PER_TURN:
                    yield None

    # -- waiting ---------------------------------------------------------------------------

    def deadlines(self, timers: Timers) -> Deadlines:
        """Where everything waits that has a time limit; one for the broker."""
        if self._deadlines is None:
            self._timers = timers
            self._deadlines = Deadlines(timers)
        return self._deadlines

    def stop_waiting(self) -> None:
        """Nobody is left to be answered (I-42)."""
        if self._deadlines is not None:
            self._deadlines.close()

    def _wake(self, partition: Partition) -> None:
        self._moved[partition] = None
        if self._is_wake_due or self.is_wake_coming():
            return
        if self._timers is not None:
            # Soon, not now: a request that writes to several partitions, or the next one that
            # has already come, may have more for the same reader.
            self._is_wake_due = True
            self._timers.call_later(0.0, self._wake_late)

    def _wake_late(self) -> None:
        self._is_wake_due = False
        self.wake_readers()
        self.after_late_wake()

    def wake_readers(self) -> None:
        """Let the fetches look that wait for partitions which moved since the last call."""
        while self._moved:
            moved, self._moved = self._moved, {}
            for partition in moved:
                for reader, mark in list(partition.readers.items()):
                    reader.progressed(mark)


class _Planned(NamedTuple):
    """A partition to be led, and what its leader has to know."""

    wanted: NewPartition
    facts: LeaderFacts


def _facts(topic: TopicFacts, partition: PartitionFacts, in_sync_min: int) -> LeaderFacts:
    return LeaderFacts(
        topic.topic_id,
        partition.leader_epoch,
        len(partition.replicas),
        len(partition.isr),
        in_sync_min,
    )


class _SlotNames(TypedDict):
    topic: bytes
    topic_id: bytes
    partition: int


def _slot_names(leader: Partition) -> _SlotNames:
    topic, index = leader.partition
    return {"topic": topic.encode(), "topic_id": leader.topic_id.bytes, "partition": index}
