"""Names of ours that belong to a pipe or a directory: one partition's trouble, and no waiting."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kits.storage.log_stories import batch_of
from kits.storage.manager_stories import ONE, TOPIC_ID, TWO
from millstream.model.errors import OperatingError, StorageFailed, TooManyOpenFiles
from millstream.model.ids import LeaderEpoch, Offset
from millstream.runtime.clock import SystemClock
from millstream.runtime.disk import NotAFile
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.log.reader import Isolation
from millstream.storage.manager.log_manager import LogManager, StartReport, StorageDependencies
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.sim.background import InlineBackground

FIRST = f"{0:020d}"
FILES = (f"{FIRST}.log", f"{FIRST}.index", f"{FIRST}.timeindex")


def in_time(call: Callable[[], object]) -> None:
    """Fail by name where a call would wait forever."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's thread
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for the other end of a pipe"
    for error in failures:
        raise error


def started(root: Path) -> tuple[LogManager, StartReport]:
    dependencies = StorageDependencies(
        OsDisk(), SystemClock(), SeededRandomness(1), InlineBackground()
    )
    manager = LogManager(dependencies, [str(root)])
    return manager, manager.start(lambda _partition, _topic_id: SMALL_SEGMENTS)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    manager, _ = started(tmp_path)
    for partition in (ONE, TWO):
        log = manager.create(partition, TOPIC_ID, SMALL_SEGMENTS)
        log.append_as_leader(batch_of(b"value"), leader_epoch=LeaderEpoch(0))
    manager.close()
    return tmp_path


@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "directory"])
@pytest.mark.parametrize("name", FILES)
def test_a_start_goes_on_without_the_one_partition(
    root: Path, name: str, make: Callable[[Path], None], is_clean: bool
) -> None:
    path = root / str(ONE) / name
    path.unlink()
    make(path)
    if not is_clean:
        (root / ".kafka_cleanshutdown").unlink()

    def start() -> None:
        manager, report = started(root)
        assert list(report.unusable_partitions) == [ONE]
        assert name in report.unusable_partitions[ONE]
        assert not report.failed_directories
        assert manager.get(TWO).log_end == 1
        manager.close()

    in_time(start)


@pytest.mark.parametrize("name", ["meta.properties", "recovery-point-offset-checkpoint"])
def test_a_pipe_for_a_file_of_the_directory_is_an_error(root: Path, name: str) -> None:
    (root / name).unlink(missing_ok=True)
    os.mkfifo(root / name)
    disk = OsDisk()

    def check() -> None:
        for call in (disk.open_read, disk.open_write, disk.size):
            with pytest.raises(NotAFile, match="not a regular file"):
                call(str(root / name))

    in_time(check)


def test_a_pipe_that_comes_later_takes_no_directory_offline(root: Path) -> None:
    manager, _ = started(root)
    log = manager.get(ONE)
    path = root / str(ONE) / FILES[0]
    manager.files.close()
    path.unlink()
    os.mkfifo(path)

    def append() -> None:
        with pytest.raises(OperatingError, match="not a regular file"):
            log.append_as_leader(batch_of(b"more"), leader_epoch=LeaderEpoch(0))

    in_time(append)
    assert manager.directories[0].failure is None
    manager.close()


def test_a_slice_says_what_is_wrong_in_errors_of_ours(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, _ = started(root)
    log = manager.get(ONE)
    log.set_high_watermark(log.log_end)
    found = log.read(Offset(0), size_max=1000, isolation=Isolation.LOG_END).data
    path = root / str(ONE) / FILES[0]
    os.truncate(path, 10)
    with pytest.raises(StorageFailed, match="shorter than") as caught:
        found.read()
    assert caught.value.directory == str(root)

    def no_descriptor(_: object) -> None:
        raise OSError(24, "Too many open files", str(path))

    monkeypatch.setattr(type(found.file), "open", no_descriptor)
    with pytest.raises(TooManyOpenFiles):
        found.read()
    monkeypatch.undo()
    manager.close()
