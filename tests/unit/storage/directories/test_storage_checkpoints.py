"""Offset checkpoints: Kafka's text format, replaced as a whole, never read in part."""

from pathlib import Path

import pytest

from millstream.model.ids import Offset, TopicPartition
from millstream.model.invariant import InvariantViolated
from millstream.runtime.os_disk import OsDisk
from millstream.storage.directories.checkpoints import (
    CorruptCheckpoint,
    read_offsets,
    write_offsets,
)

OFFSETS = {
    TopicPartition("orders", 0): Offset(12345),
    TopicPartition("orders", 11): Offset(0),
    TopicPartition("a.b_c-d", 2): Offset(2**63 - 1),
}


def written(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_bytes_are_those_that_kafka_writes(tmp_path: Path) -> None:
    """Kafka 4.3.1's OffsetCheckpointFile writes exactly these bytes for the same map."""
    path = tmp_path / "recovery-point-offset-checkpoint"
    write_offsets(OsDisk(), str(path), {TopicPartition("a.b", 0): Offset(12)})
    assert path.read_bytes() == bytes.fromhex("300a310a612e6220302031320a")


def test_what_was_written_is_read_back_and_no_temporary_file_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "checkpoint")
    write_offsets(OsDisk(), path, {TopicPartition("old", 1): Offset(7)})
    write_offsets(OsDisk(), path, OFFSETS)
    assert read_offsets(OsDisk(), path) == OFFSETS
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


def test_no_offsets_is_a_valid_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    write_offsets(OsDisk(), str(path), {})
    assert path.read_bytes() == b"0\n0\n"
    assert read_offsets(OsDisk(), str(path)) == {}


def test_missing_file_holds_nothing(tmp_path: Path) -> None:
    assert read_offsets(OsDisk(), str(tmp_path / "checkpoint")) == {}


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    """I-11. Also the cut inside the last number, which would read as a smaller offset."""
    path = tmp_path / "checkpoint"
    write_offsets(OsDisk(), str(path), OFFSETS)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CorruptCheckpoint):
            read_offsets(OsDisk(), str(path))


@pytest.mark.parametrize(
    ("text", "line_number"),
    [
        ("1\n0\n", 1),
        ("x\n0\n", 1),
        ("0\n-1\n", 2),
        ("0\n2\na 0 1\n", 2),
        ("0\n0\na 0 1\n", 2),
        ("0\n1\na 0 1\n\n", 2),
        ("0\n1\na 0\n", 3),
        ("0\n1\na 0 1 2\n", 3),
        ("0\n1\na 0 -1\n", 3),
        ("0\n1\na -1 1\n", 3),
        ("0\n1\na 0 1_0\n", 3),
        ("0\n1\na 0 +1\n", 3),
        ("0\n1\na 0 \N{ARABIC-INDIC DIGIT ONE}\n", 3),
        (f"0\n1\na 0 {2**63}\n", 3),
        (f"0\n1\na {2**31} 0\n", 3),
        (f"0\n1\na 0 {'9' * 10_000}\n", 3),
        ("0\n2\na 0 1\na 0 2\n", 4),
        (b"0\n1\n\xff 0 1\n", 3),
    ],
)
def test_malformed_file_names_its_path_and_line(
    tmp_path: Path, text: str | bytes, line_number: int
) -> None:
    path = written(tmp_path / "checkpoint", text)
    with pytest.raises(CorruptCheckpoint) as caught:
        read_offsets(OsDisk(), path)
    assert (caught.value.path, caught.value.line_number) == (path, line_number)


def test_a_negative_offset_is_never_written(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with pytest.raises(InvariantViolated, match="I-05"):
        write_offsets(OsDisk(), str(path), {TopicPartition("a", 0): Offset(-1)})
    assert not path.exists()
