"""The process that chaos kills: it appends for ever and tells what it made durable.

    python -m millstream.testing.chaos.log.writer DIRECTORY SEED LIFE

Lines on stdout: `open START END` once the log is there, then `ack END` whenever everything below
END is flushed. A record depends on the seed, the life (one per process, also its leader epoch) and
the offset alone, so that whoever reads it later knows what must be there, and from which life.
"""

import asyncio
import os
import sys
from hashlib import blake2b
from typing import Final, NoReturn
from uuid import UUID

from millstream.kernels.compression import Codec
from millstream.model.errors import OperatingError
from millstream.model.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.model.limits import KIB, MIB
from millstream.runtime import fatal
from millstream.runtime.background import ThreadBackground
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.testing.record_batches import BatchSpec, Pair, build_batch

PARTITION: Final = TopicPartition("chaos", 0)
TOPIC_ID: Final = TopicId(UUID(int=0xC4A05))
CONFIG: Final = LogConfig(
    segment_bytes=64 * KIB,
    index_interval_bytes=KIB,
    retention_ms=-1,
    retention_bytes=MIB,
    file_delete_delay_ms=0,
)
FIRST_MS: Final = 1_700_000_000_000
"""A record's timestamp is this plus its offset."""
PRODUCERS: Final = 12
"""Each writes half as often as the one before it: the last ones are remembered from long ago."""


def record_at(*, seed: int, life: int, offset: int) -> Pair:
    """The one record that may be found there."""
    digest = blake2b(f"{seed}/{life}/{offset}".encode(), digest_size=32).digest()
    return b"key %d" % (offset % 97), digest * (1 + digest[0] % 8)


class ChaosWriter:
    """Appends, flushes, rolls and deletes by chance, as the seed has it."""

    def __init__(self, manager: LogManager, *, seed: int, life: int) -> None:
        self._manager = manager
        self._log: Log = manager.create(PARTITION, TOPIC_ID, CONFIG)
        self._seed = seed
        self._life = life
        self._sequences = [0] * PRODUCERS
        self._chance = SeededRandomness(f"chaos writer {seed}/{life}")
        self._flush_chance = self._chance.choice([0.3, 0.1, 0.02])
        self._flushes_after_roll = self._chance.chance(0.5)
        _tell(f"open {self._log.log_start} {self._log.log_end}")

    async def run(self) -> NoReturn:
        """Until somebody kills the process."""
        while True:
            self._append(self._chance.integer(1, 40))
            is_due = self._flushes_after_roll and self._log.is_flush_due
            if is_due or self._chance.chance(self._flush_chance):
                self._flush()
            if self._chance.chance(0.05):
                self._manager.store_checkpoints()
            if self._chance.chance(0.05):
                self._manager.run_retention()
            if self._chance.chance(0.01):
                self._log.roll()
            await asyncio.sleep(0)  # flushes that finished in their thread are told here

    def _append(self, count: int) -> None:
        first = self._log.log_end
        pairs = [
            record_at(seed=self._seed, life=self._life, offset=first + number)
            for number in range(count)
        ]
        producer = self._producer()
        spec = BatchSpec(
            codec=Codec(self._chance.integer(0, 5)),
            producer_id=producer,
            producer_epoch=self._life,
            base_sequence=self._sequences[producer],
        )
        stamps = range(FIRST_MS + first, FIRST_MS + first + count)
        batch = build_batch(pairs, spec, timestamps=stamps)
        self._log.append_as_leader(batch, leader_epoch=LeaderEpoch(self._life))
        self._sequences[producer] += count

    def _producer(self) -> int:
        producer = 0
        while producer < PRODUCERS - 1 and self._chance.chance(0.5):
            producer += 1
        return producer

    def _flush(self) -> None:
        end = self._log.log_end
        self._manager.flush(self._log, lambda failure: self._flushed(end, failure))

    def _flushed(self, end: Offset, failure: OperatingError | None) -> None:
        if failure is not None:
            raise failure
        self._log.set_high_watermark(max(end, self._log.high_watermark))
        _tell(f"ack {end}")


def _tell(line: str) -> None:
    """One system call: a killed process leaves whole lines or none."""
    try:
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more: the run that started this process is over


async def _write(directory: str, *, seed: int, life: int) -> None:
    loop = asyncio.get_running_loop()
    fatal.install(loop)
    randomness = SeededRandomness(f"chaos manager {seed}/{life}")
    dependencies = StorageDependencies(OsDisk(), SystemClock(), randomness, ThreadBackground(loop))
    manager = LogManager(dependencies, [directory])
    manager.start(lambda *_: CONFIG)
    await ChaosWriter(manager, seed=seed, life=life).run()


if __name__ == "__main__":
    asyncio.run(_write(sys.argv[1], seed=int(sys.argv[2]), life=int(sys.argv[3])))
