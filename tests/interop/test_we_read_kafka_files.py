"""Every kind of file that a real Kafka left on disk, read by the part of ours that knows it."""

import json
from pathlib import Path
from struct import iter_unpack

import pytest

from kits.interop.kafka_reads import dumped_batches
from kits.interop.kafka_reference import PartitionReference
from kits.interop.kafka_workload import COMPACTED_TOPICS, DELETED_UP_TO, TOPICS
from kits.interop.kafka_world import KafkaDirectory, KafkaWorld
from kits.interop.our_records import decode_all, visible
from millstream.kernels import batches
from millstream.kernels.errors import Reason
from millstream.model.ids import Offset, TopicPartition
from millstream.model.limits import BATCH_BYTES_MAX
from millstream.runtime.os_disk import OsDisk
from millstream.storage import names
from millstream.storage.directories import clean_shutdown
from millstream.storage.directories.checkpoints import read_offsets
from millstream.storage.directories.partition_metadata import format_topic_id, read_topic_id
from millstream.storage.epochs import LeaderEpochs
from millstream.storage.producers import snapshot as producer_snapshot
from millstream.storage.segments.txn_index import TransactionIndex
from millstream.testing.peers.dump import Dump, DumpedBatch
from millstream.testing.peers.dump_tool import dump_log, dumpable_files

pytestmark = pytest.mark.interop

DISK = OsDisk()
PARTITIONS = [f"{topic}-0" for topic in TOPICS]
NOT_COMPACTED = [f"{topic}-0" for topic in TOPICS if topic not in COMPACTED_TOPICS]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="session")
def clean_dump(world: KafkaWorld, jars: Path) -> Dump:
    """All files of the cleanly closed directory in one start of the tool."""
    files = [path for name in PARTITIONS for path in dumpable_files(world.clean.path / name)]
    return dump_log(files, jars=jars)


@pytest.fixture(scope="session")
def unclean_dump(world: KafkaWorld, jars: Path) -> Dump:
    """The logs of the killed broker; the tool stumbles over its preallocated indexes."""
    logs = [path for name in PARTITIONS for path in (world.unclean.path / name).glob("*.log")]
    return dump_log(sorted(logs), jars=jars)


def both(world: KafkaWorld) -> list[KafkaDirectory]:
    return [world.clean, world.unclean]


def logs_of(directory: KafkaDirectory, name: str) -> list[Path]:
    return sorted((directory.path / name).glob("*.log"))


def test_tool_finds_nothing_wrong_and_gaps_only_where_compacted(
    clean_dump: Dump, unclean_dump: Dump
) -> None:
    assert clean_dump.complaints == []
    assert unclean_dump.complaints == []
    with_gaps = {Path(gap.partition(":")[0]).parent.name for gap in clean_dump.gaps}
    assert with_gaps == {f"{topic}-0" for topic in COMPACTED_TOPICS}


@pytest.mark.parametrize("name", PARTITIONS)
def test_dump_shows_what_clients_read(name: str, world: KafkaWorld, clean_dump: Dump) -> None:
    reference = world.clean.reference[name]
    dumped = [
        record
        for batch in dumped_batches(clean_dump, world.clean.path / name)
        if not batch.is_control
        for record in batch.records
        if record.offset >= reference.start
    ]
    assert [(r.offset, r.timestamp_ms, r.key_bytes, r.value_bytes) for r in dumped] == [
        (r.offset, r.timestamp_ms, size_of(r.key), size_of(r.value)) for r in reference.uncommitted
    ]
    assert [(r.key, r.payload) for r in dumped] == [
        (text_of(r.key), text_of(r.value)) for r in reference.uncommitted
    ]


def size_of(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def text_of(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="replace")


@pytest.mark.parametrize("name", PARTITIONS)
def test_walk_sees_the_batches_that_kafka_sees(
    name: str, world: KafkaWorld, clean_dump: Dump, unclean_dump: Dump
) -> None:
    for directory, dump in ((world.clean, clean_dump), (world.unclean, unclean_dump)):
        for path in logs_of(directory, name):
            data = path.read_bytes()
            rows, end, reason = batches.walk(
                data, 0, len(data), check_crc=True, size_max=BATCH_BYTES_MAX
            )
            assert (end, Reason(reason)) == (len(data), Reason.NONE)
            walked = [
                tuple(rows[at : at + batches.ROW_FIELDS])
                for at in range(0, len(rows), batches.ROW_FIELDS)
            ]
            told = [row_of(batch, walked[n]) for n, batch in enumerate(dump.file(path).batches)]
            assert walked == told


def row_of(batch: DumpedBatch, walked: tuple[int, ...]) -> tuple[int, ...]:
    """The row that the tool's words amount to; it does not tell the base timestamp."""
    attributes = (
        CODECS.index(batch.codec)
        | (batch.timestamp_type == "LogAppendTime") << 3
        | batch.is_transactional << 4
        | batch.is_control << 5
        | (batch.delete_horizon_ms is not None) << 6
    )
    base_timestamp = walked[batches.BASE_TIMESTAMP]
    if batch.delete_horizon_ms is not None:
        base_timestamp = batch.delete_horizon_ms
    return (
        batch.position,
        batch.size,
        batch.base_offset,
        batch.last_offset,
        batch.leader_epoch,
        attributes,
        base_timestamp,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.count or 0,
    )


@pytest.mark.parametrize("name", PARTITIONS)
def test_columns_hold_what_clients_read(name: str, world: KafkaWorld) -> None:
    for directory in both(world):
        reference = directory.reference[name]
        records = [
            record
            for path in logs_of(directory, name)
            for record in visible(decode_all(path.read_bytes()))
            if record.offset >= reference.start
        ]
        assert records == reference.uncommitted


@pytest.mark.parametrize("name", NOT_COMPACTED)
def test_index_entries_follow_the_rule_we_follow(name: str, world: KafkaWorld) -> None:
    """An entry before every batch that begins more than the interval after the last entry."""
    interval = int(world.clean.reference[name].config.get("index.interval.bytes", 4096))
    for path in logs_of(world.clean, name):
        entries, times = expected_entries(path, interval)
        base = int(path.stem)
        offset_index = path.with_suffix(names.OFFSET_INDEX).read_bytes()
        time_index = path.with_suffix(names.TIME_INDEX).read_bytes()
        assert [(base + o, p) for o, p in iter_unpack(">ii", offset_index)] == entries
        assert [(t, base + o) for t, o in iter_unpack(">qi", time_index)] == times


def expected_entries(path: Path, interval: int) -> tuple[list[tuple[int, int]], ...]:
    data = path.read_bytes()
    rows, _, _ = batches.walk(data, 0, len(data), check_crc=False, size_max=BATCH_BYTES_MAX)
    entries: list[tuple[int, int]] = []
    times: list[tuple[int, int]] = []
    newest, since = (-1, 0), 0
    for at in range(0, len(rows), batches.ROW_FIELDS):
        last_offset = rows[at + batches.LAST_OFFSET]
        newest = max(newest, (rows[at + batches.MAX_TIMESTAMP], last_offset), key=lambda n: n[0])
        if since > interval:
            entries.append((last_offset, rows[at + batches.POSITION]))
            if not times or newest[0] > times[-1][0]:
                times.append(newest)
            since = 0
        since += rows[at + batches.SIZE]
    if rows and (not times or newest[0] > times[-1][0]):
        times.append(newest)  # written when the segment is rolled or closed
    return entries, times


@pytest.mark.parametrize("name", PARTITIONS)
def test_snapshots_are_decoded_and_encoded_alike(
    name: str, world: KafkaWorld, clean_dump: Dump
) -> None:
    for path in (world.clean.path / name).glob(f"*{names.SNAPSHOT}"):
        raw = path.read_bytes()
        states = producer_snapshot.decode(raw, end_offset=Offset(int(path.stem)))
        assert producer_snapshot.encode(states) == raw
        told = clean_dump.file(path).producers
        assert [
            (e.producer_id, e.epoch, e.coordinator_epoch, e.last_sequence, e.last_offset)
            for e in states.entries()
        ] == [
            (p.producer_id, p.producer_epoch, p.coordinator_epoch, p.last_sequence, p.last_offset)
            for p in told
        ]
        assert [e.transaction_first_offset for e in states.entries()] == [
            -1 if p.current_txn_first_offset is None else p.current_txn_first_offset for p in told
        ]


@pytest.mark.parametrize("name", PARTITIONS)
def test_transaction_indexes_are_read(name: str, world: KafkaWorld, clean_dump: Dump) -> None:
    for path in (world.clean.path / name).glob(f"*{names.TXN_INDEX}"):
        told = [entry[1:] for entry in clean_dump.file(path).aborted]
        assert [tuple(entry) for entry in TransactionIndex(DISK, str(path)).entries()] == told
        assert told


@pytest.mark.parametrize("name", PARTITIONS)
def test_epochs_and_topic_ids_are_read(name: str, world: KafkaWorld) -> None:
    starts = []
    for directory in both(world):
        path = directory.path / name
        epochs = LeaderEpochs.load(DISK, str(path / names.LEADER_EPOCHS))
        starts.append([tuple(entry) for entry in epochs.entries()])
        topic_id = read_topic_id(DISK, str(path / names.PARTITION_METADATA))
        assert topic_id is not None
        text = (path / names.PARTITION_METADATA).read_text()
        assert text == f"version: 0\ntopic_id: {format_topic_id(topic_id)}"
    clean, unclean = (directory.reference[name] for directory in both(world))
    assert starts == [[(0, clean.start)], epochs_after_restart(clean, unclean)]


def epochs_after_restart(
    clean: PartitionReference, unclean: PartitionReference
) -> list[tuple[int, int]]:
    """Going down and coming up are a leader change each; an epoch without a record is replaced."""
    assert unclean.start == clean.start
    return [(0, clean.start), (2, clean.end)] if clean.end else [(2, 0)]


def test_checkpoints_are_read(world: KafkaWorld) -> None:
    for directory in both(world):
        found = {
            name: read_offsets(DISK, str(directory.path / name))
            for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS)
        }
        ends = {TopicPartition(t, 0): directory.reference[f"{t}-0"].end for t in TOPICS}
        # A killed broker knows an older end.
        for name in (names.RECOVERY_POINTS, names.HIGH_WATERMARKS):
            assert ends.keys() <= found[name].keys()
            assert all(found[name][key] <= end for key, end in ends.items())
        assert found[names.LOG_STARTS] == {TopicPartition("deleted", 0): DELETED_UP_TO}
    clean = {name: read_offsets(DISK, f"{world.clean.path}/{name}") for name in found}
    assert {key: clean[names.RECOVERY_POINTS][key] for key in ends} == {
        TopicPartition(t, 0): world.clean.reference[f"{t}-0"].end for t in TOPICS
    }
    assert clean[names.HIGH_WATERMARKS] == clean[names.RECOVERY_POINTS]


def test_clean_shutdown_file_is_taken(world: KafkaWorld, tmp_path: Path) -> None:
    source = world.clean.path / clean_shutdown.CLEAN_SHUTDOWN_FILE
    (tmp_path / source.name).write_bytes(source.read_bytes())
    taken = clean_shutdown.read_and_remove(DISK, str(tmp_path))
    assert taken is not None
    assert taken.broker_epoch == json.loads(source.read_text())["brokerEpoch"]
    assert not clean_shutdown.is_present(DISK, str(tmp_path))
    assert not clean_shutdown.is_present(DISK, str(world.unclean.path))
