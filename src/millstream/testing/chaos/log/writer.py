"""The process that chaos kills: it appends forever and reports what is durable.

    python -m millstream.testing.chaos.log.writer DIRECTORY SEED LIFE

Lines on stdout: `open START END` once the log is open, then `ack END` whenever everything below
END is flushed. A record depends on the seed, the life (one per process, also its leader epoch) and
the offset only, so that a later reader knows what must be there, and from which life.
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
"""Each writes half as often as the one before it, so the state of the last ones is old."""


def record_at(*, seed: int, life: int, offset: int) -> Pair:
    """The only record that may be found at that offset."""
    digest = blake2b(f"{seed}/{life}/{offset}".encode(), digest_size=32).digest()
    return b"key %d" % (offset % 97), digest * (1 + digest[0] % 8)


class ChaosWriter:
    """Appends, flushes, rolls and deletes at random, decided by the seed."""

    def __init__(self, manager: LogManager, *, seed: int, life: int) -> None:
        self._manager = manager
        self._log: Log = manager.create(PARTITION, TOPIC_ID, CONFIG)
        self._seed = seed
        self._life = life
        self._sequences = [0] * PRODUCERS
        self._chance = SeededRandomness(f"chaos writer {seed}/{life}")
        self._flush_chance = self._chance.choice([0.3, 0.1, 0.02])
        self._flushes_after_roll = self._chance.chance(0.5)
        _print_line(f"open {self._log.log_start} {self._log.log_end}")

    async def run(self) -> NoReturn:
        """Run until the process is killed."""
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
            await asyncio.sleep(0)  # flushes that finished in their thread are reported here

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
        self._manager.flush(self._log, lambda failure: self._on_flushed(end, failure))

    def _on_flushed(self, end: Offset, failure: OperatingError | None) -> None:
        if failure is not None:
            raise failure
        self._log.set_high_watermark(max(end, self._log.high_watermark))
        _print_line(f"ack {end}")


def _print_line(line: str) -> None:
    """One system call: a killed process leaves whole lines or none."""
    try:
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except BrokenPipeError:
        os._exit(0)  # nothing reads the pipe: the run that started this process is over


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
