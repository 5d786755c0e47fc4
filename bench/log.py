"""The storage engine against bare system calls on the same bytes, and how it scales."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from crc32c import crc32c

from bench import kernels
from bench.measure import Row, alternate, fact, row
from millstream.model.ids import LeaderEpoch, Offset
from millstream.runtime.clock import SystemClock
from millstream.runtime.os_disk import OsDisk
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.testing.log_kit import OpenedLog, open_log
from millstream.testing.record_batches import BatchSpec, build_batch

KIB, MIB = 1024, 1024 * 1024
BATCH_BYTES = {"16 KB": 16 * KIB, "128 KB": 128 * KIB, "1 MB": MIB}
RUN_BYTES = 256 * MIB
RECOVERY_BYTES = 512 * MIB
RECORD_BYTES = 100
RATIO_GOALS = {"16 KB": None, "128 KB": 0.6, "1 MB": 0.6}
SEGMENTS_MANY = 4_000
SEGMENTS_FEW = 40
FLAT = 1.2
PARTITIONS = 10_000
CONFIG = LogConfig(max_message_bytes=2 * MIB, retention_ms=-1)


def measure() -> list[Row]:
    rows: list[Row] = []
    for name, size in BATCH_BYTES.items():
        batch = batch_of(size)
        rows.append(measure_append(name, batch))
        rows.append(measure_read(name, batch))
    rows += [one for one in kernels.measure() if one["goal"] is not None]
    rows.append(measure_recovery())
    rows += measure_depth()
    rows += measure_partitions()
    return rows


def batch_of(size_bytes: int) -> bytearray:
    """A batch of 100-byte records of about this size."""
    count = (size_bytes - 61) // (RECORD_BYTES + 9)
    value = os.urandom(RECORD_BYTES)
    return build_batch([(None, value)] * count, BatchSpec(timestamp_ms=1_700_000_000_000))


@contextmanager
def scratch() -> Iterator[str]:
    """A directory on the disk of the working tree, not on a memory file system."""
    Path("build").mkdir(exist_ok=True)
    path = tempfile.mkdtemp(prefix="bench-", dir="build")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def opened(root: str, config: LogConfig = CONFIG, *, is_clean: bool = True) -> OpenedLog:
    return open_log(OsDisk(), SystemClock(), config, root=root, is_clean=is_clean)


def fill(log: Log, batch: bytearray, count: int) -> None:
    for _ in range(count):
        log.append_as_leader(batch, leader_epoch=LeaderEpoch(1))


def measure_append(name: str, batch: bytearray) -> Row:
    count = RUN_BYTES // len(batch)

    def ours() -> float:
        with scratch() as root:
            log = opened(root)
            return timed(lambda: fill(log.log, batch, count), count * len(batch), log.abandon)

    def peer() -> float:
        with scratch() as root:
            descriptor = os.open(f"{root}/plain", os.O_RDWR | os.O_CREAT)

            def write() -> None:
                position = 0
                for _ in range(count):
                    position += os.pwrite(descriptor, batch, position)

            return timed(write, count * len(batch), lambda: os.close(descriptor))

    what = f"append, {name} batches, MB/s (peer: pwrite)"
    return row(f"log.append.{name}", what, alternate(ours, peer), goal=RATIO_GOALS[name])


def measure_read(name: str, batch: bytearray) -> Row:
    count, size = RUN_BYTES // len(batch), len(batch)
    with scratch() as root:
        log = opened(root)
        fill(log.log, batch, count)
        log.log.set_high_watermark(log.log.log_end)
        records = log.log.log_end // count
        descriptor = os.open(log.log.segments.active.log.path, os.O_RDONLY)

        def ours() -> float:
            def read() -> None:
                for number in range(count):
                    offset = Offset(number * records)
                    log.log.read(
                        offset, size_max=size, isolation=Isolation.HIGH_WATERMARK
                    ).data.read()

            return timed(read, count * size)

        def peer() -> float:
            def read() -> None:
                for number in range(count):
                    os.pread(descriptor, size, number * size)

            return timed(read, count * size)

        pair = alternate(ours, peer)
        os.close(descriptor)
        log.abandon()
    what = f"read, {name} at a time, MB/s (peer: pread)"
    return row(f"log.read.{name}", what, pair, goal=RATIO_GOALS[name])


def timed(
    work: Callable[[], object], size_bytes: int, after: Callable[[], object] = lambda: None
) -> float:
    """MB/s of the work itself."""
    start = time.perf_counter()
    work()
    speed = size_bytes / (time.perf_counter() - start) / 1e6
    after()
    return speed


def measure_recovery() -> Row:
    """An unclean start reads and checks everything above the recovery point, here all of it."""
    batch = batch_of(BATCH_BYTES["16 KB"])
    count = RECOVERY_BYTES // len(batch)
    with scratch() as root:
        log = opened(root)
        fill(log.log, batch, count)
        path = log.log.segments.active.log.path
        log.abandon()

        def ours() -> float:
            start = time.perf_counter()
            found = opened(root, is_clean=False)
            seconds = time.perf_counter() - start
            found.abandon()
            return count * len(batch) / seconds / 1e9

        def peer() -> float:
            start = time.perf_counter()
            with open(path, "rb", buffering=0) as file:
                while chunk := file.read(4 * MIB):
                    crc32c(chunk)
            return count * len(batch) / (time.perf_counter() - start) / 1e9

        pair = alternate(ours, peer)
    what = "recovery, 16 KB batches, GB/s (peer: read and CRC only)"
    return row("log.recovery", what, pair, goal=None)


def measure_depth() -> list[Row]:
    """A read costs the same at the start, in the middle, and however many segments there are."""
    batch = batch_of(4 * KIB)
    config = LogConfig(segment_bytes=3 * len(batch), index_interval_bytes=1, retention_ms=-1)
    rows = []
    with scratch() as few_root, scratch() as many_root:
        few, many = opened(few_root, config), opened(many_root, config)
        fill(few.log, batch, 3 * SEGMENTS_FEW)
        fill(many.log, batch, 3 * SEGMENTS_MANY)
        for where, part in (("at offset 0", 0.0), ("in the middle", 0.5)):
            pair = alternate(
                lambda part=part: reads_per_second(many.log, part),  # type: ignore[misc]
                lambda part=part: reads_per_second(few.log, part),  # type: ignore[misc]
            )
            what = f"reads/s {where} of {SEGMENTS_MANY} segments (peer: of {SEGMENTS_FEW})"
            rows.append(row(f"log.depth.{part}", what, pair, goal=round(1 / FLAT, 2)))
        few.abandon()
        many.abandon()
    return rows


def reads_per_second(log: Log, part: float) -> float:
    offset = Offset(int(log.log_end * part))
    start = time.perf_counter()
    for _ in range(3_000):
        log.read(offset, size_max=4 * KIB, isolation=Isolation.LOG_END).data.read()
    return 3_000 / (time.perf_counter() - start)


def measure_partitions() -> list[Row]:
    """Run in a process of its own, so that its memory is only that of the partitions."""
    with scratch() as root:
        facts: dict[str, float] = {}
        for step in ("create", "clean", "unclean"):
            command = [sys.executable, "-m", "bench.partitions", step, root, str(PARTITIONS)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            facts.update(json.loads(done.stdout))
    return [
        fact(f"log.partitions.{name}", f"{PARTITIONS} partitions: {what}", facts[name])
        for name, what in (
            ("create_s", "created, s"),
            ("clean_start_s", "start after a clean stop, s"),
            ("unclean_start_s", "start after a kill, s"),
            ("kib_per_partition", "memory per open partition, KiB"),
            ("open_files", "descriptors open"),
        )
    ]
