"""What our engine writes is read by Apache Kafka: by its dump tool and by a running broker."""

from dataclasses import replace
from pathlib import Path

import pytest

from kits.interop.kafka_reads import assert_kafka_reads, dumped_batches, read_through_kafka
from kits.interop.kafka_workload import COMPACTED_TOPICS, TOPICS
from kits.interop.kafka_world import KafkaDirectory, KafkaWorld, copy_tree
from kits.interop.our_log import config_of, open_log
from millstream.kernels import batches
from millstream.model.limits import BATCH_BYTES_MAX
from millstream.storage import names
from millstream.testing.peers.dump import Dump, DumpedBatch
from millstream.testing.peers.dump_tool import dump_log, dumpable_files

pytestmark = pytest.mark.interop

# A follower begins where the leader's log begins; these have lost their beginning.
FOLLOWED = [t for t in TOPICS if t not in (*COMPACTED_TOPICS, "deleted", "empty")]


def batches_in(path: Path) -> list[bytes]:
    """The batches of a segment file, one by one."""
    data = path.read_bytes()
    rows, end, _ = batches.walk(data, 0, len(data), check_crc=True, size_max=BATCH_BYTES_MAX)
    assert end == len(data)
    starts = [rows[at + batches.POSITION] for at in range(0, len(rows), batches.ROW_FIELDS)]
    return [data[a:b] for a, b in zip(starts, [*starts[1:], end], strict=True)]


def follow(source: KafkaDirectory, topic: str, target: Path) -> Path:
    """Our replica of Kafka's log, fetched batch by batch and closed; its partition directory."""
    with open_log(target, topic, config_of(TOPICS[topic]), is_clean=True) as log:
        for path in sorted((source.path / f"{topic}-0").glob("*.log")):
            for batch in batches_in(path):
                log.append_as_follower(batch)
        log.set_high_watermark(log.log_end)
    return target / f"{topic}-0"


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name != names.PARTITION_METADATA
    }


def without_position(found: list[DumpedBatch]) -> list[DumpedBatch]:
    """Segments may be cut at other places; everything else must be the same."""
    return [replace(batch, position=0) for batch in found]


@pytest.mark.parametrize("topic", FOLLOWED)
def test_our_replica_has_kafkas_files_byte_for_byte(
    topic: str, world: KafkaWorld, tmp_path: Path
) -> None:
    """Segments, all three indexes, producer snapshots and the epoch file."""
    ours = contents(follow(world.clean, topic, tmp_path))
    kafkas = contents(world.clean.path / f"{topic}-0")
    assert ours.keys() == kafkas.keys()
    assert [name for name in ours if ours[name] != kafkas[name]] == []


def test_dump_tool_reads_our_replicas(world: KafkaWorld, jars: Path, tmp_path: Path) -> None:
    ours = [follow(world.clean, topic, tmp_path) for topic in FOLLOWED]
    dump = dump_log([path for d in ours for path in dumpable_files(d)], jars=jars)
    kafkas = [world.clean.path / directory.name for directory in ours]
    expected = dump_log([path for d in kafkas for path in dumpable_files(d)], jars=jars)
    assert dump.complaints == []
    assert dump.gaps == []
    for our_directory, kafka_directory in zip(ours, kafkas, strict=True):
        found = dumped_batches(dump, our_directory)
        assert found
        assert without_position(found) == without_position(
            dumped_batches(expected, kafka_directory)
        )


def test_one_replica_with_every_check(world: KafkaWorld, jars: Path, tmp_path: Path) -> None:
    expected: Dump = dump_log(dumpable_files(world.clean.path / "transactions-rolled-0"), jars=jars)
    wanted = dumped_batches(expected, world.clean.path / "transactions-rolled-0")
    directory = follow(world.clean, "transactions-rolled", tmp_path)
    assert_kafka_reads(directory, jars=jars, batches=wanted)


def test_dump_tool_reads_what_our_recovery_left(
    world: KafkaWorld, jars: Path, tmp_path: Path
) -> None:
    """Preallocated indexes of a killed Kafka trip its own tool; after our recovery none does."""
    data = world.unclean.copy_to(tmp_path / "data")
    for topic, config in TOPICS.items():
        with open_log(data, topic, config_of(config), is_clean=False):
            pass
    files = [path for topic in TOPICS for path in dumpable_files(data / f"{topic}-0")]
    dump = dump_log(files, jars=jars)
    assert dump.complaints == []
    compacted = {f"{topic}-0" for topic in COMPACTED_TOPICS}
    assert {Path(gap.partition(":")[0]).parent.name for gap in dump.gaps} <= compacted


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "unclean"])
def test_broker_serves_our_replicas(
    is_clean: bool, world: KafkaWorld, jars: Path, tmp_path: Path
) -> None:
    """Clean: it trusts our indexes and snapshots. Unclean: it recovers our segments itself."""
    ours = {topic: follow(world.clean, topic, tmp_path / "ours") for topic in FOLLOWED}
    copy_tree(world.clean.path / "deleted-0", tmp_path / "deleted-0")
    ours["deleted"] = tmp_path / "deleted-0"
    start = world.clean.reference["deleted-0"].start
    read = read_through_kafka(
        tmp_path / "kafka", ours, jars=jars, is_clean=is_clean, log_starts={"deleted": start}
    )
    for topic in ours:
        expected = world.clean.reference[f"{topic}-0"]
        found = read[f"{topic}-0"]
        assert found._replace(config={}) == expected._replace(config={})
