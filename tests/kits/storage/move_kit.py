"""A log manager over two directories whose moves a test runs step by step."""

from dataclasses import dataclass, field

import pytest

from kits.storage.compaction_kit import StepBackground
from kits.storage.log_stories import batch_of, of_producer
from kits.storage.manager_stories import ONE, Broker
from millstream.model.ids import LeaderEpoch, ProducerId, TopicPartition
from millstream.runtime.background import Background
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.manager.log_manager import LogManager, StartReport, StorageDependencies
from millstream.storage.moves import copy as move_copy
from millstream.storage.moves import directory_move
from millstream.storage.moves.directory_move import MoveEnd, MoveReport
from millstream.testing.log_kit import SMALL_SEGMENTS, read_all
from millstream.testing.record_batches import PlainRecord
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk

A, B = "/a", "/b"


@dataclass(slots=True)
class Mover:
    """Partition ONE lies in A with some history, and is to go to B."""

    config: LogConfig = SMALL_SEGMENTS
    count: int = 60
    steps: StepBackground = field(default_factory=StepBackground)
    broker: Broker = field(init=False)

    def __post_init__(self) -> None:
        self.broker = Broker(roots=(A, B), config=self.config, background=self.steps)
        self.broker.manager.moves.prefer(ONE, A)
        self.broker.create(ONE)
        self.put(b"first")
        self.broker.fill(ONE, self.count)
        self.broker.replicate(ONE)
        self.broker.manager.store_checkpoints()

    @property
    def reports(self) -> list[MoveReport]:
        return self.broker.ended_moves

    @property
    def log(self) -> Log:
        return self.broker.manager.get(ONE)

    @property
    def disk(self) -> SimDisk:
        return self.broker.disk

    def put(self, *values: bytes) -> None:
        """By an idempotent producer, so that its state has to move too."""
        epoch = LeaderEpoch(max(0, int(self.log.latest_epoch)))
        for value in values:
            entry = self.log.producers.states.get(ProducerId(7))
            sequence = 0 if entry is None else int(entry.last_sequence) + 1
            batch = batch_of(value, spec=of_producer(7, sequence))
            self.log.append_as_leader(batch, leader_epoch=epoch)

    def move(self, to: str = B) -> None:
        self.broker.manager.moves.move(ONE, to)

    def finish(self) -> MoveEnd:
        """Run everything that is left."""
        while self.steps.run_next() is not None:
            self.broker.manager.moves.resume()
        return self.reports[-1].end

    def kill(self) -> None:
        self.steps.queue.clear()
        self.broker.kill()

    def lose_power(self) -> None:
        self.steps.queue.clear()
        self.broker.lose_power()

    def records(self) -> list[PlainRecord]:
        return read_all(self.log)

    def facts(self) -> tuple[object, ...]:
        return facts_of(self.log)

    def strange_names(self) -> list[str]:
        """Whatever is not a partition, a checkpoint or a lock."""
        found = []
        for root in (A, B):
            for name in self.disk.list_directory(root):
                if names.FUTURE_DIRECTORY in name or names.DELETED_DIRECTORY in name:
                    found.append(f"{root}/{name}")
                path = f"{root}/{name}"
                if names.parse_partition_directory(name) is not None:
                    found += [
                        f"{path}/{one}"
                        for one in self.disk.list_directory(path)
                        if one in (names.MOVED_HERE, names.MOVING_AWAY)
                    ]
        return found

    def places(self, partition: TopicPartition = ONE) -> list[str]:
        name = names.partition_directory(partition)
        return [root for root in (A, B) if self.disk.exists(f"{root}/{name}")]


def reopened(
    disk: SimDisk, config: LogConfig = SMALL_SEGMENTS, background: Background | None = None
) -> tuple[LogManager, StartReport]:
    """The next process on a disk that was left somehow."""
    dependencies = StorageDependencies(
        disk, ManualClock(), SeededRandomness(6), background or InlineBackground()
    )
    manager = LogManager(dependencies, (A, B))
    return manager, manager.start(lambda _partition, _topic_id: config)


def facts_of(log: Log) -> tuple[object, ...]:
    """What a move must not change."""
    producers = [(one.producer_id, one.last_sequence) for one in log.producers.states.entries()]
    return log.log_start, log.log_end, log.epochs.entries(), producers, read_all(log)


def make_steps_small(patch: pytest.MonkeyPatch) -> None:
    """Many steps for little data."""
    patch.setattr(move_copy, "CHUNK_BYTES", 512)
    patch.setattr(directory_move, "JOB_BYTES_MAX", 2048)


def after(jobs: int, mover: Mover | None = None) -> Mover:
    """A partition in the middle of its move."""
    mover = mover or Mover()
    mover.move()
    for _ in range(jobs):
        assert mover.steps.run_next() is not None
    return mover


def all_steps() -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        make_steps_small(patch)
        return after(0).steps.run_all()


STEPS = len(all_steps())
