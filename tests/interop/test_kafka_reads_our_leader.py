"""What our engine writes as a leader, and what our compaction leaves, is read by Apache Kafka."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from kits.interop.kafka_reads import assert_kafka_reads, dumped_batches, read_through_kafka
from kits.interop.our_records import read_committed, read_uncommitted
from millstream.kernels.compression import Codec
from millstream.model.ids import LeaderEpoch, TopicId, TopicPartition
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.config import LogConfig
from millstream.storage.log.log import Log
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.storage.producers.machine import Origin
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock

pytestmark = pytest.mark.interop

SEGMENTED = LogConfig(segment_bytes=4096, index_interval_bytes=512, retention_ms=-1)
COMPACTED = LogConfig(
    segment_bytes=4096,
    index_interval_bytes=512,
    cleanup_compact=True,
    cleanup_delete=False,
    min_cleanable_dirty_ratio=0.01,
    file_delete_delay_ms=0,
)
EPOCH = LeaderEpoch(1)


@contextmanager
def our_manager(directory: Path) -> Iterator[LogManager]:
    dependencies = StorageDependencies(
        OsDisk(), ManualClock(), SeededRandomness(1), InlineBackground()
    )
    manager = LogManager(dependencies, [str(directory)])
    manager.start(lambda _partition, _topic_id: SEGMENTED)
    yield manager
    manager.close()


def create(manager: LogManager, topic: str, config: LogConfig = SEGMENTED) -> Log:
    return manager.create(TopicPartition(topic, 0), TopicId(UUID(int=7)), config)


def stamp(log: Log) -> int:
    return log.context.clock.wall_ms() + log.log_end


def append(log: Log, keys: list[str], spec: BatchSpec, *, tombstones: bool = False) -> None:
    pairs = [
        (key.encode(), None if tombstones else f"{key} {log.log_end}".encode()) for key in keys
    ]
    batch = build_batch(pairs, spec._replace(timestamp_ms=stamp(log)), headers=[("h", b"v")])
    log.append_as_leader(batch, leader_epoch=EPOCH)


def write_codecs(log: Log) -> None:
    for number in range(60):
        codec = Codec(number % 5)
        append(log, [f"key-{number}-{one}" for one in range(9)], BatchSpec(codec=codec))


def write_transactions(log: Log) -> None:
    """Three producers whose transactions interleave; every third one is aborted."""
    for number in range(45):
        producer_id = 100 + number % 3
        data = BatchSpec(
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=(number // 3) * 4,
            is_transactional=True,
            codec=Codec(number % 5),
        )
        append(log, [f"k{one}" for one in range(4)], data)
        if number >= 3:
            end_transaction(log, 100 + (number + 1) % 3, is_commit=number % 3 != 0)
    for producer_id in (100, 101, 102):
        end_transaction(log, producer_id, is_commit=True)


def end_transaction(log: Log, producer_id: int, *, is_commit: bool) -> None:
    spec = BatchSpec(producer_id=producer_id, producer_epoch=0, timestamp_ms=stamp(log))
    marker = build_marker(spec, is_commit=is_commit, coordinator_epoch=3)
    log.append_as_leader(marker, leader_epoch=EPOCH, origin=Origin.COORDINATOR)


def write_keyed(log: Log) -> None:
    for number in range(120):
        keys = [f"user-{(number * 7 + one) % 40}" for one in range(5)]
        append(log, keys, BatchSpec(codec=Codec(number % 5)), tombstones=number % 11 == 10)


def compact_all(manager: LogManager, log: Log) -> int:
    """Clean until nothing is dirty; how many passes it took."""
    log.roll()
    log.set_high_watermark(log.log_end)
    log.flush()
    manager.store_checkpoints()
    passes = 0
    while manager.cleaner.run_once() is not None:
        passes += 1
        assert passes < 20
    manager.store_checkpoints()
    return passes


def test_dump_tool_reads_our_leaders_files(jars: Path, tmp_path: Path) -> None:
    with our_manager(tmp_path) as manager:
        for topic, write in (("codecs", write_codecs), ("transactions", write_transactions)):
            log = create(manager, topic)
            write(log)
            log.set_high_watermark(log.log_end)
    for topic, count in (("codecs", 60), ("transactions", 90)):
        dump = assert_kafka_reads(tmp_path / f"{topic}-0", jars=jars)
        found = dumped_batches(dump, tmp_path / f"{topic}-0")
        assert len(found) == count
        assert {batch.leader_epoch for batch in found} == {EPOCH}
    assert list((tmp_path / "transactions-0").glob("*.txnindex"))


def test_dump_tool_reads_what_our_compaction_leaves(jars: Path, tmp_path: Path) -> None:
    with our_manager(tmp_path) as manager:
        log = create(manager, "compacted", COMPACTED)
        write_keyed(log)
        before = log.size_bytes
        assert compact_all(manager, log)
        assert log.size_bytes < before / 2
    assert_kafka_reads(tmp_path / "compacted-0", jars=jars, allow_gaps=True)


def test_dump_tool_reads_a_compacted_transactional_log(jars: Path, tmp_path: Path) -> None:
    with our_manager(tmp_path) as manager:
        log = create(manager, "both", COMPACTED)
        write_transactions(log)
        assert compact_all(manager, log)
    assert_kafka_reads(tmp_path / "both-0", jars=jars, allow_gaps=True)


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_broker_serves_our_leaders_logs(is_clean: bool, jars: Path, tmp_path: Path) -> None:
    """A real broker shows its clients the records that our own readers see."""
    expected = {}
    with our_manager(tmp_path / "ours") as manager:
        for topic, write, config in (
            ("codecs", write_codecs, SEGMENTED),
            ("transactions", write_transactions, SEGMENTED),
            ("compacted", write_keyed, COMPACTED),
            ("both", write_transactions, COMPACTED),
        ):
            log = create(manager, topic, config)
            write(log)
            log.set_high_watermark(log.log_end)
            if config.cleanup_compact:
                compact_all(manager, log)
            expected[topic] = (log.log_end, read_uncommitted(log), read_committed(log))
    ours = {topic: tmp_path / "ours" / f"{topic}-0" for topic in expected}
    read = read_through_kafka(tmp_path / "kafka", ours, jars=jars, is_clean=is_clean)
    for topic, (end, uncommitted, committed) in expected.items():
        found = read[f"{topic}-0"]
        assert found.end == end
        assert found.uncommitted == uncommitted
        assert found.committed == committed
