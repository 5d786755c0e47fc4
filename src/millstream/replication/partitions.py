"""All partitions that this broker leads, kept in step with the cluster's metadata."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypedDict
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
from millstream.replication.deadlines import Deadlines, Timers
from millstream.replication.metadata import (
    ChangeFacts,
    ImageFacts,
    PartitionFacts,
    TopicFacts,
    TopicSettings,
)
from millstream.replication.partition import LeaderFacts, LeaderHome, Partition
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
        """Grows when a look-up may have another outcome than before, or a directory failed."""
        return self._changes + sum(
            directory.failure is not None for directory in self._logs.directories
        )

    # -- metadata --------------------------------------------------------------------------

    def attach(self, image: ImageFacts) -> None:
        """Lead what the metadata says, with the logs that are there; make those that are not."""
        for topic in image.topics.values():
            self._lead(topic, topic.partitions, is_new=False)
        self._changes += 1

    def apply(self, change: ChangeFacts) -> None:
        """Create and delete logs and leaders; take over changed settings."""
        for topic in change.deleted:
            self._drop(topic)
        for topic in change.created:
            self._lead(topic, topic.partitions, is_new=True)
        for grown in change.grown:
            self._lead(
                grown.topic, grown.topic.partitions[grown.first_new_partition :], is_new=True
            )
        for topic in change.reconfigured:
            self._reconfigure(topic)
        if change.brokers_reconfigured:
            for topic in list(self._topics.values()):
                self._reconfigure(topic)
        self._changes += 1

    def try_again(self) -> None:
        """Make the logs that could not be made before: there may be room by now."""
        count = len(self._without_room)
        for name, is_new in list(self._without_room.items()):
            topic = self._topics[name[0]]
            facts = next(one for one in topic.partitions if one.index == name[1])
            config = self._settings.log_config(topic.configs)
            wanted = NewPartition(TopicPartition(*name), topic.topic_id, config)
            self._lead_one(topic, facts, wanted, is_new=is_new)
        if len(self._without_room) < count:
            self._changes += 1

    def _lead(
        self, topic: TopicFacts, partitions: Sequence[PartitionFacts], *, is_new: bool
    ) -> None:
        self._topics[topic.name] = topic
        self._names[topic.topic_id.bytes] = topic.name
        config = self._settings.log_config(topic.configs)
        mine = [one for one in partitions if self._broker_id in (None, one.leader)]
        wanted = [
            NewPartition(TopicPartition(topic.name, one.index), topic.topic_id, config)
            for one in mine
        ]
        try:
            logs = self._logs.create_many(wanted, is_new=is_new)
        except OperatingError:
            # One that cannot be must not keep the others from being.
            for one, new in zip(mine, wanted, strict=True):
                self._lead_one(topic, one, new, is_new=is_new)
            return
        for one, log in zip(mine, logs, strict=True):
            log.config = config  # of a log that was there, the start may have known less
            self._add(Partition(log, self._facts(topic, one), self._home))

    def _lead_one(
        self, topic: TopicFacts, facts: PartitionFacts, wanted: NewPartition, *, is_new: bool
    ) -> None:
        try:
            log = self._logs.create_many([wanted], is_new=is_new)[0]
        except OperatingError as error:
            name = wanted.partition
            self._without_room.pop(name, None)
            if isinstance(error, DiskFull | TooManyOpenFiles):
                self._without_room[name] = is_new
            self._offline[name] = (
                error if isinstance(error, StorageFailed) else StorageFailed(str(name), str(error))
            )
            return
        self._add(Partition(log, self._facts(topic, facts), self._home))

    def _facts(self, topic: TopicFacts, partition: PartitionFacts) -> LeaderFacts:
        return LeaderFacts(
            topic.topic_id,
            partition.leader_epoch,
            len(partition.replicas),
            len(partition.isr),
            int(self._settings.topic_text(topic.configs, MIN_IN_SYNC)),
        )

    def _add(self, leader: Partition) -> None:
        name = leader.partition
        self._offline.pop(name, None)
        self._without_room.pop(name, None)
        self._leaders[name] = leader
        self._leaders_by_id[leader.topic_id.bytes, name.partition] = leader
        # What clients may write to internal topics is decided for each request, in Python.
        if self._table is not None and not name.topic.startswith(INTERNAL_PREFIX):
            self._table.add(leader.slot, **_slot_names(leader))

    def _drop(self, topic: TopicFacts) -> None:
        for one in topic.partitions:
            name = TopicPartition(topic.name, one.index)
            self._offline.pop(name, None)
            self._without_room.pop(name, None)
            leader = self._leaders.pop(name, None)
            if leader is None:
                continue
            self._leaders_by_id.pop((leader.topic_id.bytes, name.partition), None)
            if self._table is not None:
                self._table.remove(leader.slot, **_slot_names(leader))
            leader.close()
            try:
                self._logs.delete(name)
            except OperatingError:
                continue  # the directory failed, which it noted itself
        self._topics.pop(topic.name, None)
        self._names.pop(topic.topic_id.bytes, None)

    def _reconfigure(self, topic: TopicFacts) -> None:
        self._topics[topic.name] = topic
        config = self._settings.log_config(topic.configs)
        for one in topic.partitions:
            leader = self._leaders.get((topic.name, one.index))
            if leader is not None:
                leader.log.config = config
                leader.configure(self._facts(topic, one))

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


class _SlotNames(TypedDict):
    topic: bytes
    topic_id: bytes
    partition: int


def _slot_names(leader: Partition) -> _SlotNames:
    topic, index = leader.partition
    return {"topic": topic.encode(), "topic_id": leader.topic_id.bytes, "partition": index}
