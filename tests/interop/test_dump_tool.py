"""Kafka's dump tool finds damage, and we detect it: otherwise 'no complaint' means nothing."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kits.interop.kafka_reads import assert_kafka_reads
from kits.interop.kafka_world import KafkaWorld, copy_tree
from millstream.testing.peers.dump_tool import IndexCheck, dump_log

pytestmark = pytest.mark.interop

FIRST = f"{0:020}"


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def break_payload(directory: Path) -> None:
    flip_byte(directory / f"{FIRST}.log", 70)


def cut_tail(directory: Path) -> None:
    path = directory / f"{FIRST}.log"
    path.write_bytes(path.read_bytes()[:-5])


def move_index_entry(directory: Path) -> None:
    path = directory / f"{FIRST}.index"
    offset, position = struct.unpack_from(">ii", path.read_bytes())
    path.write_bytes(struct.pack(">ii", offset + 1, position) + path.read_bytes()[8:])


def change_indexed_time(directory: Path) -> None:
    path = directory / f"{FIRST}.timeindex"
    timestamp_ms, offset = struct.unpack_from(">qi", path.read_bytes())
    path.write_bytes(struct.pack(">qi", timestamp_ms - 1, offset) + path.read_bytes()[12:])


def cut_index_entry(directory: Path) -> None:
    path = directory / f"{FIRST}.index"
    # The tool itself rounds the size down; it is our own check that must see it.
    path.write_bytes(path.read_bytes()[:-3])


def break_snapshot(directory: Path) -> None:
    flip_byte(next(directory.glob("*.snapshot")), 3)


DAMAGES = [
    break_payload,
    cut_tail,
    move_index_entry,
    change_indexed_time,
    cut_index_entry,
    break_snapshot,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_a_complaint(
    damage: Callable[[Path], None], world: KafkaWorld, jars: Path, tmp_path: Path
) -> None:
    copy_tree(world.clean.path / "dense-index-0", tmp_path / "log")
    damage(tmp_path / "log")
    with pytest.raises(AssertionError):
        assert_kafka_reads(tmp_path / "log", jars=jars)


def test_verification_prints_nothing_but_still_compares(world: KafkaWorld, jars: Path) -> None:
    index = world.clean.path / "dense-index-0" / f"{FIRST}.index"
    dump = dump_log([index], jars=jars, index_check=IndexCheck.VERIFY)
    assert dump.complaints == []
    assert dump.file(index).index == []


def test_shallow_dump_has_batches_without_records(world: KafkaWorld, jars: Path) -> None:
    path = world.clean.path / "zstd-0" / f"{FIRST}.log"
    dump = dump_log([path], jars=jars, deep=False)
    assert dump.complaints == []
    batches = dump.file(path).batches
    assert batches
    assert {batch.codec for batch in batches} <= {"zstd", "none"}
    assert not any(batch.records for batch in batches)
