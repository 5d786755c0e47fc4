"""What only the real disk has: short transfers, broken disks, locks of other processes."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from millstream.runtime.os_disk import OsDisk


@pytest.fixture
def short_transfers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that never moves more than three bytes in one call."""
    real_write, real_read = os.pwrite, os.pread

    def write_one(descriptor: int, data: bytes | memoryview, position: int) -> int:
        return real_write(descriptor, memoryview(data).cast("B")[:3], position)

    def write_many(descriptor: int, buffers: Sequence[bytes], position: int) -> int:
        return real_write(descriptor, b"".join(buffers)[:3], position)

    def read_many(descriptor: int, buffers: Sequence[memoryview], position: int) -> int:
        data = real_read(descriptor, min(3, len(buffers[0])), position)
        buffers[0][: len(data)] = data
        return len(data)

    monkeypatch.setattr(os, "pwrite", write_one)
    monkeypatch.setattr(os, "pwritev", write_many)
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_read(fd, min(3, size), at))
    monkeypatch.setattr(os, "preadv", read_many)


@pytest.mark.usefixtures("short_transfers")
def test_short_transfers_are_continued(tmp_path: Path) -> None:
    with OsDisk().open_write(f"{tmp_path}/a") as file:
        file.write_at(0, b"0123456789")
        file.write_all_at(10, [b"ab", b"", b"cdefg", bytearray(b"h"), memoryview(b"ijkl")])
        assert file.read_at(0, 100) == b"0123456789abcdefghijkl"
        buffer = bytearray(20)
        assert file.read_into(2, memoryview(buffer)) == 20
        assert buffer == b"23456789abcdefghijkl"


def test_a_full_disk_in_the_middle_of_a_write_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write = os.pwrite
    calls: list[int] = []

    def fills_up(descriptor: int, data: bytes | memoryview, position: int) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "no space left")
        return real_write(descriptor, memoryview(data)[:4], position)

    monkeypatch.setattr(os, "pwrite", fills_up)
    with OsDisk().open_write(f"{tmp_path}/a") as file:
        with pytest.raises(OSError, match="no space left") as caught:
            file.write_at(0, b"0123456789")
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, f"{tmp_path}/a")
    assert calls == [10, 6]


def test_a_write_that_makes_no_progress_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    with (
        OsDisk().open_write(f"{tmp_path}/a") as file,
        pytest.raises(OSError, match="accepts no more bytes"),
    ):
        file.write_at(0, b"x")


def test_a_broken_disk_does_not_look_like_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_path: str) -> os.stat_result:
        raise OSError(errno.EIO, "planted")

    calls: list[Callable[[str], object]] = [OsDisk().exists, OsDisk().is_directory]
    answers: list[object] = []
    with monkeypatch.context() as patch:  # no longer than needed: pytest itself asks the disk
        patch.setattr(os, "stat", broken)
        for call in calls:
            try:
                answers.append(call(f"{tmp_path}/a"))
            except OSError as error:
                answers.append(error.errno)
    assert answers == [errno.EIO, errno.EIO]


def test_a_failed_sync_tells_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_descriptor: int) -> None:
        raise OSError(errno.EIO, "planted")

    monkeypatch.setattr(os, "fdatasync", broken)
    with OsDisk().open_write(f"{tmp_path}/a") as file, pytest.raises(OSError, match=r"planted.*/a"):
        file.sync()


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    disk = OsDisk()
    before = len(os.listdir("/proc/self/fd"))
    lock = disk.lock_directory(str(tmp_path))
    for call in (disk.lock_directory, disk.open_read):
        with pytest.raises(OSError, match="Errno"):
            call(str(tmp_path))
    disk.sync_directory(str(tmp_path))
    lock.release()
    disk.open_write(f"{tmp_path}/a").close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_lock_is_freed_when_its_process_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from millstream.runtime.os_disk import OsDisk; "
        "lock = OsDisk().lock_directory(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError):
            OsDisk().lock_directory(str(tmp_path))
        holder.kill()
        holder.wait(10)
        OsDisk().lock_directory(str(tmp_path)).release()
