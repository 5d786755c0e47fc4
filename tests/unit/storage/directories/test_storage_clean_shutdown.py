"""The clean-shutdown file: taken once, gone before loading begins."""

import json
from pathlib import Path

import pytest

from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch
from millstream.model.invariant import InvariantViolated
from millstream.runtime.os_disk import OsDisk
from millstream.storage.directories import clean_shutdown

# As Kafka 4.3.1's CleanShutdownFileHandler writes it.
KAFKA_BYTES = b'{"version":0,"brokerEpoch":123}'


class RecordingDisk(OsDisk):
    """Notes the calls whose order the promise depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def remove(self, path: str) -> None:
        self.calls.append("remove")
        super().remove(path)

    def rename(self, source: str, target: str) -> None:
        self.calls.append("rename")
        super().rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.calls.append("sync_directory")
        super().sync_directory(path)


def test_bytes_are_those_that_kafka_writes(tmp_path: Path) -> None:
    disk = RecordingDisk()
    clean_shutdown.write(disk, str(tmp_path), BrokerEpoch(123))
    assert (tmp_path / ".kafka_cleanshutdown").read_bytes() == KAFKA_BYTES
    assert clean_shutdown.is_present(disk, str(tmp_path))
    assert disk.calls == ["rename", "sync_directory"]


def test_the_proof_is_taken_once_and_durably(tmp_path: Path) -> None:
    """Trap 15: a crash while loading must count as unclean, so the removal is synced."""
    disk = RecordingDisk()
    (tmp_path / ".kafka_cleanshutdown").write_bytes(KAFKA_BYTES)
    assert clean_shutdown.read_and_remove(disk, str(tmp_path)) == (BrokerEpoch(123), None)
    assert disk.calls == ["remove", "sync_directory"]
    assert not clean_shutdown.is_present(disk, str(tmp_path))
    assert clean_shutdown.read_and_remove(disk, str(tmp_path)) is None


@pytest.mark.parametrize(
    "raw",
    [
        *(KAFKA_BYTES[:size] for size in range(len(KAFKA_BYTES))),
        b"[123]",
        b'{"version":0}',
        b'{"version":0,"brokerEpoch":"123"}',
        b'{"version":0,"brokerEpoch":true}',
        b'{"version":0,"brokerEpoch":1.5}',
        b'{"version":0,"brokerEpoch":-1}',
        b'{"version":0,"brokerEpoch":9223372036854775808}',
        b'{"version":0,"brokerEpoch":123,"logs":-1}',
        b'{"version":0,"brokerEpoch":123,"logs":"4"}',
        b"\xff\xfe\x00",
        b"[" * 4096,
        KAFKA_BYTES + b" " * 5000,
    ],
)
def test_unreadable_content_is_clean_with_an_unknown_epoch(tmp_path: Path, raw: bytes) -> None:
    """As in Kafka: the file appears only after the logs were closed, whatever is in it."""
    (tmp_path / ".kafka_cleanshutdown").write_bytes(raw)
    assert clean_shutdown.read_and_remove(OsDisk(), str(tmp_path)) == (None, None)
    assert not clean_shutdown.is_present(OsDisk(), str(tmp_path))


def test_a_broker_that_never_registered_leaves_no_epoch(tmp_path: Path) -> None:
    clean_shutdown.write(OsDisk(), str(tmp_path), NO_BROKER_EPOCH)
    assert clean_shutdown.read_and_remove(OsDisk(), str(tmp_path)) == (None, None)


def test_the_number_of_logs_stands_beside_what_kafka_reads(tmp_path: Path) -> None:
    clean_shutdown.write(OsDisk(), str(tmp_path), BrokerEpoch(123), log_count=4)
    content = json.loads((tmp_path / ".kafka_cleanshutdown").read_bytes())
    assert content == {**json.loads(KAFKA_BYTES), "logs": 4}
    assert clean_shutdown.read_and_remove(OsDisk(), str(tmp_path)) == (BrokerEpoch(123), 4)


def test_an_impossible_epoch_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(InvariantViolated, match="I-17"):
        clean_shutdown.write(OsDisk(), str(tmp_path), BrokerEpoch(-2))
