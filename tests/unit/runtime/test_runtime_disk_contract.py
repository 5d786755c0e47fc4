"""One suite for the real and the simulated disk: what storage may rely on holds on both."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.runtime.disk import Disk, read_whole, remove_tree, write_atomically
from millstream.runtime.os_disk import OsDisk
from millstream.testing.sim.disk import SimDisk


class Machine:
    """A disk, a directory on it to work in, and the disk as another process sees it."""

    def __init__(self, disk: Disk, home: str, another: Callable[[], Disk]) -> None:
        self.disk = disk
        self.home = home
        self.another = another

    def path(self, name: str) -> str:
        return f"{self.home}/{name}"


@pytest.fixture(params=["os", "simulated"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    if request.param == "os":
        return Machine(OsDisk(), str(tmp_path), OsDisk)
    disk = SimDisk(directories=["/somewhere"])
    return Machine(disk, "/somewhere", disk.another_process)


def fails_with(number: int, call: Callable[[], object]) -> None:
    with pytest.raises(OSError, match=r"Errno") as caught:
        call()
    assert caught.value.errno == number


def test_positional_writes_overwrite_extend_and_leave_zeros_in_gaps(machine: Machine) -> None:
    with machine.disk.open_write(machine.path("a")) as file:
        file.write_at(0, b"0123456789")
        file.write_at(3, memoryview(b"xyz"))
        file.write_at(14, bytearray(b"end"))
        assert file.size() == 17
        assert file.read_at(0, 100) == b"012xyz6789\0\0\0\0end"


def test_vectored_write_of_more_buffers_than_one_call_takes(machine: Machine) -> None:
    pieces = [bytes([number % 256]) * (number % 5) for number in range(5000)]
    with machine.disk.open_write(machine.path("a")) as file:
        file.write_all_at(7, pieces)
        file.write_all_at(3, [])
        assert file.read_at(7, 100_000) == b"".join(pieces)
        assert file.read_at(0, 7) == bytes(7)


def test_reads_end_at_the_end_of_the_file(machine: Machine) -> None:
    with machine.disk.open_write(machine.path("a")) as file:
        file.write_at(0, b"abcdef")
        assert file.read_at(4, 10) == b"ef"
        assert file.read_at(6, 10) == b""
        assert file.read_at(600, 10) == b""
        buffer = bytearray(b"........")
        assert file.read_into(4, memoryview(buffer)) == 2
        assert buffer == b"ef......"
        assert file.read_into(99, memoryview(buffer)) == 0
        assert file.read_into(1, memoryview(buffer)[2:5]) == 3
        assert buffer == b"efbcd..."


def test_truncate_cuts_and_grows_with_zeros(machine: Machine) -> None:
    with machine.disk.open_write(machine.path("a")) as file:
        file.write_at(0, b"abcdef")
        file.truncate(2)
        assert file.read_at(0, 10) == b"ab"
        file.truncate(4)
        assert file.read_at(0, 10) == b"ab\0\0"
        fails_with(errno.EINVAL, lambda: file.truncate(-1))
        file.sync()
    assert machine.disk.size(machine.path("a")) == 4


def test_open_write_keeps_content_and_open_read_does_not_write(machine: Machine) -> None:
    path = machine.path("a")
    with machine.disk.open_write(path) as file:
        file.write_at(0, b"abc")
    with machine.disk.open_write(path) as file:
        assert file.read_at(0, 9) == b"abc"
    with machine.disk.open_read(path) as file:
        assert file.path == path
        fails_with(errno.EBADF, lambda: file.write_at(0, b"x"))
        fails_with(errno.EBADF, lambda: file.write_all_at(0, [b"x"]))
        fails_with(errno.EINVAL, lambda: file.truncate(0))
        assert file.read_at(0, 9) == b"abc"


def test_a_closed_file_answers_ebadf_and_closes_again(machine: Machine) -> None:
    file = machine.disk.open_write(machine.path("a"))
    file.close()
    file.close()
    assert file.descriptor is None
    fails_with(errno.EBADF, lambda: file.write_at(0, b"x"))
    fails_with(errno.EBADF, lambda: file.read_at(0, 1))
    fails_with(errno.EBADF, lambda: file.read_into(0, memoryview(bytearray(1))))
    fails_with(errno.EBADF, file.sync)
    fails_with(errno.EBADF, file.size)


def test_negative_positions_are_refused(machine: Machine) -> None:
    with machine.disk.open_write(machine.path("a")) as file:
        file.write_at(0, b"abc")
        fails_with(errno.EINVAL, lambda: file.write_at(-1, b"x"))
        fails_with(errno.EINVAL, lambda: file.write_all_at(-1, [b"x"]))
        fails_with(errno.EINVAL, lambda: file.read_at(-1, 1))
        fails_with(errno.EINVAL, lambda: file.read_into(-1, memoryview(bytearray(1))))


def test_what_is_missing_answers_enoent(machine: Machine) -> None:
    disk, gone = machine.disk, machine.path("gone")
    assert not disk.exists(gone)
    assert not disk.is_directory(gone)
    for call in (disk.open_read, disk.size, disk.list_directory, disk.remove):
        fails_with(errno.ENOENT, lambda call=call: call(gone))  # type: ignore[misc]
    fails_with(errno.ENOENT, lambda: disk.remove_directory(gone))
    fails_with(errno.ENOENT, lambda: disk.rename(gone, machine.path("b")))
    fails_with(errno.ENOENT, lambda: disk.open_write(f"{gone}/child"))
    fails_with(errno.ENOENT, lambda: disk.sync_directory(gone))
    fails_with(errno.ENOENT, lambda: disk.lock_directory(gone))
    fails_with(errno.ENOENT, lambda: disk.free_bytes(gone))


def test_files_and_directories_are_not_taken_for_each_other(machine: Machine) -> None:
    disk, folder, file = machine.disk, machine.path("folder"), machine.path("file")
    disk.make_directories(folder)
    disk.open_write(file).close()
    assert disk.is_directory(folder)
    assert not disk.is_directory(file)
    assert disk.exists(file)
    assert not disk.exists(f"{file}/child")
    fails_with(errno.EISDIR, lambda: disk.open_read(folder))
    fails_with(errno.EISDIR, lambda: disk.open_write(folder))
    fails_with(errno.EISDIR, lambda: disk.remove(folder))
    fails_with(errno.ENOTDIR, lambda: disk.remove_directory(file))
    fails_with(errno.ENOTDIR, lambda: disk.list_directory(file))
    fails_with(errno.ENOTDIR, lambda: disk.sync_directory(file))
    fails_with(errno.ENOTDIR, lambda: disk.open_write(f"{file}/child"))
    fails_with(errno.EEXIST, lambda: disk.make_directories(file))


def test_listing_is_sorted_and_has_only_the_directory_s_own_names(machine: Machine) -> None:
    disk = machine.disk
    for name in ("b", "a", "Z", "10", "9"):
        disk.open_write(machine.path(name)).close()
    disk.make_directories(machine.path("c/d/e"))
    disk.make_directories(machine.path("c/d"))
    assert disk.list_directory(machine.home) == ["10", "9", "Z", "a", "b", "c"]
    assert disk.list_directory(machine.path("c")) == ["d"]


def test_rename_replaces_a_file_and_open_handles_follow_their_file(machine: Machine) -> None:
    disk, old, new = machine.disk, machine.path("old"), machine.path("new")
    with disk.open_write(old) as first, disk.open_write(new) as replaced:
        first.write_at(0, b"first")
        replaced.write_at(0, b"replaced")
        disk.rename(old, new)
        first.write_at(5, b"!")
        assert read_whole(disk, new) == b"first!"
        assert replaced.read_at(0, 99) == b"replaced"
    assert disk.list_directory(machine.home) == ["new"]
    disk.rename(new, new)
    assert read_whole(disk, new) == b"first!"


def test_rename_of_directories(machine: Machine) -> None:
    disk = machine.disk
    disk.make_directories(machine.path("a/inner"))
    disk.open_write(machine.path("a/file")).close()
    disk.make_directories(machine.path("full/x"))
    disk.make_directories(machine.path("empty"))
    disk.open_write(machine.path("plain")).close()
    fails_with(errno.ENOTEMPTY, lambda: disk.rename(machine.path("a"), machine.path("full")))
    fails_with(errno.ENOTDIR, lambda: disk.rename(machine.path("a"), machine.path("plain")))
    fails_with(errno.EISDIR, lambda: disk.rename(machine.path("plain"), machine.path("empty")))
    fails_with(errno.EINVAL, lambda: disk.rename(machine.path("a"), machine.path("a/inner/b")))
    disk.rename(machine.path("a"), machine.path("empty"))
    assert disk.list_directory(machine.path("empty")) == ["file", "inner"]
    disk.rename(machine.path("empty/file"), machine.path("full/moved"))
    assert disk.list_directory(machine.path("full")) == ["moved", "x"]


def test_remove_keeps_open_handles_readable(machine: Machine) -> None:
    with machine.disk.open_write(machine.path("a")) as file:
        file.write_at(0, b"abc")
        machine.disk.remove(machine.path("a"))
        assert not machine.disk.exists(machine.path("a"))
        assert file.read_at(0, 9) == b"abc"
        with machine.disk.open_write(machine.path("a")) as second:
            assert second.size() == 0


def test_a_directory_with_names_is_not_removed(machine: Machine) -> None:
    disk = machine.disk
    disk.make_directories(machine.path("a/b"))
    disk.open_write(machine.path("a/b/c")).close()
    fails_with(errno.ENOTEMPTY, lambda: disk.remove_directory(machine.path("a")))
    remove_tree(disk, machine.path("a"))
    assert not disk.exists(machine.path("a"))


def test_lock_excludes_another_process_and_the_same_one_until_released(machine: Machine) -> None:
    other = machine.another()
    lock = machine.disk.lock_directory(machine.home)
    for disk in (other, machine.disk):
        with pytest.raises(BlockingIOError):
            disk.lock_directory(machine.home)
    assert machine.disk.list_directory(machine.home) == [".lock"]
    lock.release()
    second = other.lock_directory(machine.home)
    lock.release()  # the second time does nothing to the new holder
    with pytest.raises(BlockingIOError):
        machine.disk.lock_directory(machine.home)
    second.release()


def test_a_lock_knows_whether_its_path_still_leads_to_it(machine: Machine) -> None:
    disk, path, away = machine.disk, machine.path("logs"), machine.path("away")
    disk.make_directories(path)
    lock = disk.lock_directory(path)
    assert lock.is_in_place()
    disk.rename(path, away)
    assert not lock.is_in_place()
    disk.make_directories(path)
    assert not lock.is_in_place()
    disk.open_write(f"{path}/.lock").close()
    assert not lock.is_in_place()  # of the same name, and another one
    remove_tree(disk, path)
    disk.rename(away, path)
    assert lock.is_in_place()
    disk.remove(f"{path}/.lock")
    assert not lock.is_in_place()
    lock.release()


def test_an_open_file_knows_whether_it_has_a_name(machine: Machine) -> None:
    with machine.disk.open_write(machine.path("a")) as file:
        assert not file.is_removed()
        machine.disk.rename(machine.path("a"), machine.path("b"))
        assert not file.is_removed()
        machine.disk.remove(machine.path("b"))
        assert file.is_removed()
        file.write_at(0, b"still there")
    with machine.disk.open_write(machine.path("c")) as replaced:
        machine.disk.open_write(machine.path("d")).close()
        machine.disk.rename(machine.path("d"), machine.path("c"))
        assert replaced.is_removed()


def test_write_atomically_replaces_the_whole_content(machine: Machine) -> None:
    path = machine.path("checkpoint")
    write_atomically(machine.disk, path, b"the first and longer one")
    write_atomically(machine.disk, path, b"second")
    assert read_whole(machine.disk, path) == b"second"
    assert machine.disk.list_directory(machine.home) == ["checkpoint"]


def test_free_bytes_is_a_number_and_syncs_are_accepted(machine: Machine) -> None:
    assert machine.disk.free_bytes(machine.home) > 0
    machine.disk.sync_directory(machine.home)
    with machine.disk.open_write(machine.path("a")) as file:
        file.sync()
    with machine.disk.open_read(machine.path("a")) as file:
        file.sync()


def test_the_time_of_a_file_is_what_was_set_until_it_is_written_to(machine: Machine) -> None:
    path = machine.path("a")
    with machine.disk.open_write(path) as file:
        file.write_at(0, b"abc")
        machine.disk.set_modified_ms(path, 1_234_567)
        assert machine.disk.modified_ms(path) == 1_234_567
        machine.disk.rename(path, machine.path("b"))
        assert machine.disk.modified_ms(machine.path("b")) == 1_234_567
        file.write_at(3, b"d")
        assert machine.disk.modified_ms(machine.path("b")) != 1_234_567
    fails_with(errno.ENOENT, lambda: machine.disk.modified_ms(path))
    fails_with(errno.ENOENT, lambda: machine.disk.set_modified_ms(path, 1))
