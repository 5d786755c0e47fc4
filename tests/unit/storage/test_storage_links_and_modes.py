"""Symbolic links inside a data directory are never followed, and what is created is private."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.storage.log_stories import batch_of
from kits.storage.manager_stories import ONE, TOPIC_ID, TWO
from millstream.coordination.keeper.journal import Journal
from millstream.model.ids import LeaderEpoch
from millstream.runtime.clock import SystemClock
from millstream.runtime.disk import LinkRefused
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.private_files import write_private
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.manager.log_manager import LogManager, StartReport, StorageDependencies
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.sim.background import InlineBackground

FIRST = f"{0:020d}"
PRECIOUS = b"not ours"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The usual one, which lets everybody read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def started(root: Path) -> tuple[LogManager, StartReport]:
    dependencies = StorageDependencies(
        OsDisk(), SystemClock(), SeededRandomness(1), InlineBackground()
    )
    manager = LogManager(dependencies, [str(root)])
    return manager, manager.start(lambda _partition, _topic_id: SMALL_SEGMENTS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "made" / "logs"
    manager, _ = started(path)
    for partition in (ONE, TWO):
        log = manager.create(partition, TOPIC_ID, SMALL_SEGMENTS)
        log.append_as_leader(batch_of(b"value"), leader_epoch=LeaderEpoch(0))
    manager.close()
    return path


def modes_below(path: Path) -> set[tuple[str, int]]:
    return {
        ("directory" if one.is_dir() else "file", stat.S_IMODE(one.stat().st_mode))
        for one in (path, *path.rglob("*"))
    }


def test_all_that_is_created_is_for_its_owner_only(root: Path, tmp_path: Path) -> None:
    journal = Journal(OsDisk(), str(tmp_path / "made" / "keeper"))
    journal.open(SeededRandomness(1))
    journal.close()
    write_private(tmp_path / "made" / "millstream.pid", "1\n")
    assert modes_below(tmp_path / "made") == {("directory", 0o700), ("file", 0o600)}
    assert (root / str(ONE) / f"{FIRST}.log").exists()


def test_what_exists_keeps_its_mode(root: Path) -> None:
    root.chmod(0o750)
    segment = root / str(ONE) / f"{FIRST}.log"
    segment.chmod(0o640)
    manager, _ = started(root)
    manager.close()
    assert stat.S_IMODE(root.stat().st_mode) == 0o750
    assert stat.S_IMODE(segment.stat().st_mode) == 0o640


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        f"{FIRST}.log",
        f"{FIRST}.index",
        f"{FIRST}.timeindex",
        "partition.metadata",
        "leader-epoch-checkpoint",
    ],
)
def test_a_link_for_a_file_costs_its_partition_and_not_its_target(
    root: Path, tmp_path: Path, name: str, is_clean: bool
) -> None:
    target = tmp_path / "target"
    target.write_bytes(PRECIOUS)
    link = root / str(ONE) / name
    link.unlink()
    link.symlink_to(target)
    if not is_clean:
        (root / ".kafka_cleanshutdown").unlink()
    manager, report = started(root)
    assert list(report.unusable_partitions) == [ONE]
    assert f"{link} is a symbolic link" in report.unusable_partitions[ONE]
    assert not report.failed_directories
    assert manager.get(TWO).log_end == 1
    manager.close()
    assert target.read_bytes() == PRECIOUS


def test_a_link_for_a_partition_is_not_followed(root: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    partition = root / str(ONE)
    partition.rename(elsewhere)
    partition.symlink_to(elsewhere)
    before = {one.name: one.read_bytes() for one in elsewhere.iterdir()}
    (root / ".kafka_cleanshutdown").unlink()
    manager, report = started(root)
    assert f"{partition} is a symbolic link" in report.unusable_partitions[ONE]
    assert manager.get(TWO).log_end == 1
    manager.close()
    assert {one.name: one.read_bytes() for one in elsewhere.iterdir()} == before


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint.tmp", ".lock"])
def test_a_link_for_a_file_of_the_directory_is_not_written_through(
    root: Path, tmp_path: Path, name: str
) -> None:
    target = tmp_path / "target"
    target.write_bytes(PRECIOUS)
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(target)
    try:
        manager, _ = started(root)
    except Exception as error:  # noqa: BLE001 - whatever it is, it names the link
        assert name in str(error)  # noqa: PT017
    else:
        manager.close()
    assert target.read_bytes() == PRECIOUS


def test_a_dangling_link_creates_nothing(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    disk = OsDisk()
    for call in (disk.open_read, disk.open_write, disk.size):
        with pytest.raises(LinkRefused, match="link"):
            call(str(tmp_path / "link"))
    with pytest.raises(OSError, match="symbolic links"):
        write_private(tmp_path / "link", "1\n")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("name", ["identity", "log.0000000000000001", ".lock"])
def test_a_keeper_follows_no_link(tmp_path: Path, name: str) -> None:
    directory = tmp_path / "keeper"
    journal = Journal(OsDisk(), str(directory))
    journal.open(SeededRandomness(1))
    journal.close()
    target = tmp_path / "target"
    (directory / name).rename(target)
    (directory / name).symlink_to(target)
    before = target.read_bytes()
    with pytest.raises(LinkRefused) as caught:
        Journal(OsDisk(), str(directory)).open(SeededRandomness(1))
    assert caught.value.filename == str(directory / name)
    assert target.read_bytes() == before


def test_a_log_directory_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    manager, report = started(link)
    assert sorted(report.loaded) == sorted([ONE, TWO])
    manager.close()
