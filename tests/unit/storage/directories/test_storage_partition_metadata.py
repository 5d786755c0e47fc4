"""partition.metadata: which topic incarnation a directory belongs to."""

from pathlib import Path
from uuid import UUID

import pytest

from millstream.model.ids import TopicId
from millstream.model.invariant import InvariantViolated
from millstream.runtime.os_disk import OsDisk
from millstream.storage.directories.partition_metadata import (
    CorruptPartitionMetadata,
    format_topic_id,
    parse_topic_id,
    read_topic_id,
    write_topic_id,
)

TOPIC_ID = TopicId(UUID(hex="dc36f940b4aa49989e2f7ac905451e80"))
# As Kafka 4.3.1's PartitionMetadataFile writes it for this id: no newline at the end.
KAFKA_BYTES = b"version: 0\ntopic_id: 3Db5QLSqSZieL3rJBUUegA"


def test_bytes_are_those_that_kafka_writes(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    write_topic_id(OsDisk(), str(path), TOPIC_ID)
    assert path.read_bytes() == KAFKA_BYTES
    assert read_topic_id(OsDisk(), str(path)) == TOPIC_ID


def test_missing_file_names_no_topic(tmp_path: Path) -> None:
    path = str(tmp_path / "partition.metadata")
    assert read_topic_id(OsDisk(), path) is None


def test_every_cut_of_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    for size in range(len(KAFKA_BYTES)):
        path.write_bytes(KAFKA_BYTES[:size])
        with pytest.raises(CorruptPartitionMetadata):
            read_topic_id(OsDisk(), str(path))


@pytest.mark.parametrize(
    "raw",
    [
        b"version: 1\ntopic_id: 3Db5QLSqSZieL3rJBUUegA",
        b"version: 0\ntopic_id: 3Db5QLSqSZieL3rJBUUegA\n",
        b"version: 1\ntopic_id: 3Db5QLSqSZieL3rJBUUegA\nmore: 1\n",
    ],
)
def test_what_a_later_version_may_add_is_no_error(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "partition.metadata"
    path.write_bytes(raw)
    assert read_topic_id(OsDisk(), str(path)) == TOPIC_ID


@pytest.mark.parametrize(
    "raw",
    [
        b"version: -1\ntopic_id: 3Db5QLSqSZieL3rJBUUegA",
        b"version: x\ntopic_id: 3Db5QLSqSZieL3rJBUUegA",
        b"topic_id: 3Db5QLSqSZieL3rJBUUegA\nversion: 0",
        b"version: 0\ntopic_id: 3Db5QLSqSZieL3rJBUUeg",
        b"version: 0\ntopic_id: 3Db5QLSqSZieL3rJBUUegB",  # bits that no id has
        b"version: 0\ntopic_id: 3Db5QLSqSZieL3rJBUUe+A",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",  # the zero id means none
        b"version: 0\ntopic_id: " + b"A" * 10_000,
        b"version: 0\ntopic_id: \xff\xff",
    ],
)
def test_malformed_file_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "partition.metadata"
    path.write_bytes(raw)
    with pytest.raises(CorruptPartitionMetadata, match=r"partition\.metadata"):
        read_topic_id(OsDisk(), str(path))


def test_the_zero_id_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    with pytest.raises(InvariantViolated):
        write_topic_id(OsDisk(), str(path), TopicId(UUID(int=0)))
    assert not path.exists()


def test_text_form_round_trips_every_bit() -> None:
    for bit in range(128):
        topic_id = TopicId(UUID(int=1 << bit))
        assert len(format_topic_id(topic_id)) == 22
        assert parse_topic_id(format_topic_id(topic_id)) == topic_id
