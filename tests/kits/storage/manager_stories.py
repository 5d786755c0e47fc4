"""Short words for tests about a log manager over simulated directories."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from kits.storage.log_stories import batch_of
from millstream.model.ids import BrokerEpoch, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.runtime.background import Background
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.manager.log_manager import LogManager, StartReport, StorageDependencies
from millstream.storage.moves.directory_move import MoveReport
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.crash_fates import keep_none
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.durability import FateChooser

ONE, TWO, THREE = (TopicPartition("events", number) for number in range(3))
TOPIC_ID = TopicId(UUID(int=7))
OTHER_ID = TopicId(UUID(int=8))


@dataclass(slots=True)
class Broker:
    """The storage side of one broker, restarted at will."""

    roots: Sequence[str] = ("/a",)
    config: LogConfig = SMALL_SEGMENTS
    capacity_bytes: int | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    background: Background = field(default_factory=InlineBackground)
    ended_moves: list[MoveReport] = field(default_factory=list)
    disk: SimDisk = field(init=False)
    manager: LogManager = field(init=False)
    report: StartReport = field(init=False)

    def __post_init__(self) -> None:
        self.disk = SimDisk(3, directories=self.roots, capacity_bytes=self.capacity_bytes)
        self.start()

    def new_manager(self) -> LogManager:
        dependencies = StorageDependencies(
            self.disk, self.clock, SeededRandomness(5), self.background
        )
        return LogManager(dependencies, self.roots, on_move_ended=self.ended_moves.append)

    def start(self) -> StartReport:
        self.manager = self.new_manager()
        self.report = self.manager.start(lambda _partition, _topic_id: self.config)
        return self.report

    def stop(self, epoch: int = -1) -> None:
        self.manager.close(broker_epoch=BrokerEpoch(epoch))

    def restart(self, epoch: int = -1) -> StartReport:
        self.stop(epoch)
        return self.start()

    def kill(self) -> None:
        """The process dies; the disk is ready for the next one."""
        self.disk.kill()
        self.disk = self.disk.after_kill()

    def lose_power(self, choose: FateChooser = keep_none) -> None:
        self.disk.crash()
        self.disk = self.disk.after_crash(choose)

    # -- logs

    def create(self, *partitions: TopicPartition) -> list[Log]:
        return [self.manager.create(one, TOPIC_ID, self.config) for one in partitions]

    def put(self, partition: TopicPartition, *values: bytes) -> None:
        """One batch each."""
        log = self.manager.get(partition)
        epoch = LeaderEpoch(max(0, int(log.latest_epoch)))
        for value in values:
            log.append_as_leader(batch_of(value), leader_epoch=epoch)

    def fill(self, partition: TopicPartition, count: int) -> None:
        self.put(partition, *(b"%040d" % number for number in range(count)))

    def values(self, partition: TopicPartition) -> list[bytes | None]:
        return [record.value for record in read_all(self.manager.get(partition))]

    def replicate(self, partition: TopicPartition) -> None:
        log = self.manager.get(partition)
        log.set_high_watermark(Offset(log.log_end))

    def write_file(self, path: str, content: bytes) -> None:
        with self.disk.open_write(path) as file:
            file.truncate(0)
            file.write_at(0, content)
