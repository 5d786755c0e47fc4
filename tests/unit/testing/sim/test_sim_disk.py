"""The simulated disk loses what a real one may lose, keeps what it must, and fails as planned."""

import errno
from collections.abc import Callable

import pytest

from millstream.runtime.disk import read_whole, write_atomically
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.crash_fates import (
    by_table,
    keep_all,
    keep_none,
    keep_only,
    random_fates,
)
from millstream.testing.sim.disk import ProcessDiedError, SimDisk
from millstream.testing.sim.disk_faults import DiskFault
from millstream.testing.sim.durability import DROP, KEEP, ZEROS, Fate, FateKind, Link, Write


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(directories=["/d"])


def make_file(disk: SimDisk, path: str, data: bytes) -> None:
    """A file that survives any crash."""
    with disk.open_write(path) as file:
        file.write_at(0, data)
        file.sync()
    disk.sync_directory("/d")


def write(disk: SimDisk, path: str, position: int, data: bytes) -> None:
    with disk.open_write(path) as file:
        file.write_at(position, data)


def fails_with(number: int, path: str, disk: SimDisk, data: bytes = b"x") -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        write(disk, path, 0, data)
    assert caught.value.errno == number


def test_unsynced_content_is_lost_and_synced_content_is_kept(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"synced")
    write(disk, "/d/a", 6, b" and not")
    disk.crash()
    assert read_whole(disk.after_crash(keep_none), "/d/a") == b"synced"
    assert read_whole(disk.after_crash(keep_all), "/d/a") == b"synced and not"


def test_unsynced_overwrite_and_truncate_are_undone(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"0123456789")
    with disk.open_write("/d/a") as file:
        file.write_at(2, b"xx")
        file.truncate(4)
        assert file.read_at(0, 99) == b"01xx"
    disk.crash()
    assert read_whole(disk.after_crash(keep_none), "/d/a") == b"0123456789"


def test_a_name_is_lost_without_a_sync_of_its_directory_though_content_was_synced(
    disk: SimDisk,
) -> None:
    with disk.open_write("/d/a") as file:
        file.write_at(0, b"abc")
        file.sync()
    disk.crash()
    assert disk.after_crash(keep_none).list_directory("/d") == []
    assert read_whole(disk.after_crash(keep_all), "/d/a") == b"abc"


def test_a_name_is_kept_without_its_content_when_only_the_directory_was_synced(
    disk: SimDisk,
) -> None:
    write(disk, "/d/a", 0, b"abc")
    disk.sync_directory("/d")
    disk.crash()
    assert read_whole(disk.after_crash(keep_none), "/d/a") == b""


def test_a_rename_is_lost_or_kept_whole_until_its_directory_is_synced(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"old")
    make_file(disk, "/d/b", b"new")
    disk.rename("/d/b", "/d/a")
    unsynced = disk.another_process()
    disk.sync_directory("/")  # another directory's sync says nothing
    unsynced.crash()
    lost = disk.after_crash(keep_none)
    assert (read_whole(lost, "/d/a"), read_whole(lost, "/d/b")) == (b"old", b"new")
    kept = disk.after_crash(keep_all)
    assert (kept.list_directory("/d"), read_whole(kept, "/d/a")) == (["a"], b"new")


def test_rename_and_remove_survive_once_the_directory_is_synced(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"old")
    make_file(disk, "/d/b", b"new")
    make_file(disk, "/d/c", b"removed")
    disk.rename("/d/b", "/d/a")
    disk.remove("/d/c")
    disk.sync_directory("/d")
    disk.crash()
    left = disk.after_crash(keep_none)
    assert (left.list_directory("/d"), read_whole(left, "/d/a")) == (["a"], b"new")


def test_a_removed_file_comes_back_without_a_sync(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"abc")
    disk.remove("/d/a")
    disk.crash()
    assert read_whole(disk.after_crash(keep_none), "/d/a") == b"abc"
    assert not disk.after_crash(keep_all).exists("/d/a")


def test_a_file_has_one_name_when_only_the_second_of_two_renames_survives(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"abc")
    disk.rename("/d/a", "/d/b")
    disk.rename("/d/b", "/d/c")
    second = disk.durability.pending()[-1]
    disk.crash()
    assert disk.after_crash(keep_only([second])).list_directory("/d") == ["c"]


def test_a_move_between_directories_is_certain_only_after_both_syncs(disk: SimDisk) -> None:
    disk.make_directories("/d/one")
    disk.make_directories("/d/two")
    disk.sync_directory("/d")
    with disk.open_write("/d/one/a") as file:
        file.sync()
    disk.sync_directory("/d/one")
    disk.rename("/d/one/a", "/d/two/a")
    disk.sync_directory("/d/two")
    assert len(disk.durability.pending()) == 1
    disk.sync_directory("/d/one")
    disk.crash()
    left = disk.after_crash(keep_none)
    assert (left.list_directory("/d/one"), left.list_directory("/d/two")) == ([], ["a"])


def test_a_lost_directory_takes_its_synced_files_with_it(disk: SimDisk) -> None:
    disk.make_directories("/d/topic-0")
    write_atomically(disk, "/d/topic-0/file", b"abc")
    disk.crash()
    assert disk.after_crash(keep_none).list_directory("/d") == []


def test_write_atomically_leaves_old_or_new_whatever_is_lost(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"old")
    disk.faults.fail_next("sync_directory", errno.EIO)
    with pytest.raises(OSError, match="Errno"):
        write_atomically(disk, "/d/a", b"new")
    disk.crash()
    for seed in range(50):
        left = disk.after_crash(random_fates(SeededRandomness(seed)))
        assert read_whole(left, "/d/a") in (b"old", b"new"), f"seed {seed}"


@pytest.mark.parametrize(
    ("fate", "expected"),
    [
        (DROP, b"base"),
        (KEEP, b"base" + b"w" * 1200),
        (ZEROS, b"base" + bytes(1200)),
        (Fate(FateKind.PREFIX, 7), b"base" + b"w" * 7),
        (Fate(FateKind.PREFIX_OF_FULL_SIZE, 7), b"base" + b"w" * 7 + bytes(1193)),
        # The write covers the rest of the first sector (508), a whole one, and 180 of the third.
        (Fate(FateKind.SECTORS, 0b001), b"base" + b"w" * 508),
        (Fate(FateKind.SECTORS, 0b100), b"base" + bytes(1020) + b"w" * 180),
        (Fate(FateKind.SECTORS, 0b110), b"base" + bytes(508) + b"w" * 692),
    ],
)
def test_a_write_is_torn_by_bytes_by_sectors_or_down_to_its_size(
    disk: SimDisk, fate: Fate, expected: bytes
) -> None:
    make_file(disk, "/d/a", b"base")
    write(disk, "/d/a", 4, b"w" * 1200)
    (pending,) = disk.durability.pending()
    disk.crash()
    left = disk.after_crash(by_table({pending.number: fate}, default=DROP))
    assert read_whole(left, "/d/a") == expected


def test_unsynced_writes_survive_in_any_combination(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"")
    for place in range(3):
        write(disk, "/d/a", place * 2, bytes([65 + place]) * 2)
    first, second, third = disk.durability.pending()
    disk.crash()
    assert read_whole(disk.after_crash(keep_only([third])), "/d/a") == b"\0\0\0\0CC"
    assert read_whole(disk.after_crash(keep_only([first, third])), "/d/a") == b"AA\0\0CC"
    assert read_whole(disk.after_crash(keep_only([first, second])), "/d/a") == b"AABB"


def test_after_a_failed_sync_a_later_one_does_not_make_the_data_durable(disk: SimDisk) -> None:
    """The kernel may have marked the pages clean: success of the second call is no proof."""
    make_file(disk, "/d/a", b"base")
    with disk.open_write("/d/a") as file:
        file.write_at(4, b"lost")
        disk.faults.fail_next("sync", errno.EIO)
        with pytest.raises(OSError, match="Errno"):
            file.sync()
        assert file.read_at(0, 99) == b"baselost"
        file.write_at(8, b"later")
        file.sync()
    assert [type(change) for change in disk.durability.pending()] == [Write]
    disk.crash()
    assert read_whole(disk.after_crash(keep_none), "/d/a") == b"base\0\0\0\0later"
    assert read_whole(disk.after_crash(keep_all), "/d/a") == b"baselostlater"


def test_data_in_doubt_never_covers_what_was_written_and_synced_after_it(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"....")
    with disk.open_write("/d/a") as file:
        file.write_at(0, b"old!")
        disk.faults.fail_next("sync")
        with pytest.raises(OSError, match="Errno"):
            file.sync()
        file.write_at(0, b"new!")
        file.sync()
    disk.crash()
    for choose in (keep_none, keep_all):
        assert read_whole(disk.after_crash(choose), "/d/a") == b"new!"


def test_a_failed_sync_may_drop_the_cache_for_readers_too(disk: SimDisk) -> None:
    make_file(disk, "/d/a", b"base")
    disk.faults.plan(DiskFault(operation="sync", errno=errno.EIO, drops_cache=True))
    with disk.open_write("/d/a") as file:
        file.write_at(4, b"lost")
        with pytest.raises(OSError, match="Errno"):
            file.sync()
        assert file.read_at(0, 99) == b"base"


def test_a_failed_directory_sync_leaves_the_names_in_doubt(disk: SimDisk) -> None:
    disk.open_write("/d/a").close()
    disk.faults.fail_next("sync_directory")
    with pytest.raises(OSError, match="Errno"):
        disk.sync_directory("/d")
    disk.sync_directory("/d")
    assert [type(change) for change in disk.durability.pending()] == [Link]
    disk.crash()
    assert disk.after_crash(keep_none).list_directory("/d") == []


def test_the_nth_write_fails_partially_and_only_on_the_named_path(disk: SimDisk) -> None:
    disk.faults.plan(
        DiskFault(operation="write", errno=errno.ENOSPC, path_part=".log", skip=1, partial_bytes=2)
    )
    write(disk, "/d/a.log", 0, b"abc")
    write(disk, "/d/a.index", 0, b"abc")
    fails_with(errno.ENOSPC, "/d/a.log", disk, b"XYZ")
    assert read_whole(disk, "/d/a.log") == b"XYc"
    write(disk, "/d/a.log", 0, b"abc")


def test_a_full_disk_takes_what_fits_and_works_again_when_space_is_freed() -> None:
    disk = SimDisk(directories=["/d"], capacity_bytes=10)
    write(disk, "/d/a", 0, b"12345678")
    assert disk.free_bytes("/d") == 2
    fails_with(errno.ENOSPC, "/d/b", disk, b"abcd")
    assert read_whole(disk, "/d/b") == b"ab"
    write(disk, "/d/a", 0, b"overwrit")  # no growth, no space needed
    with disk.open_read("/d/a"):
        disk.remove("/d/a")
        assert disk.free_bytes("/d") == 0  # still open
    assert disk.free_bytes("/d") == 8
    write(disk, "/d/b", 0, b"abcdefghij")
    assert disk.free_bytes("/d") == 0
    with disk.open_write("/d/b") as file:
        file.truncate(1)
    assert disk.free_bytes("/d") == 9


def test_everything_under_a_failed_directory_fails_until_healed() -> None:
    disk = SimDisk(directories=["/d/one", "/d/one-more"])
    file = disk.open_write("/d/one/a")
    disk.faults.fail_directory("/d/one")
    calls: list[Callable[[], object]] = [
        lambda: file.write_at(0, b"x"),
        lambda: file.read_at(0, 1),
        file.sync,
        file.size,
        lambda: file.truncate(0),
        lambda: disk.exists("/d/one/a"),
        lambda: disk.list_directory("/d/one"),
        lambda: disk.sync_directory("/d/one"),
        lambda: disk.open_write("/d/one/b"),
        lambda: disk.rename("/d/one-more", "/d/one/x"),
        lambda: disk.remove("/d/one/a"),
        lambda: disk.lock_directory("/d/one"),
        lambda: disk.make_directories("/d/one/c"),
    ]
    for call in calls:
        with pytest.raises(OSError, match="Input/output error"):
            call()
    write(disk, "/d/one-more/a", 0, b"x")
    disk.faults.heal()
    file.write_at(0, b"x")


def test_random_faults_follow_the_seed() -> None:
    def failures(seed: int) -> list[int]:
        disk = SimDisk(seed, directories=["/d"])
        disk.faults.plan(DiskFault(operation="write", errno=errno.EIO, times=None, probability=0.3))
        failed = []
        for number in range(60):
            try:
                write(disk, "/d/a", 0, b"x")
            except OSError:
                failed.append(number)
        return failed

    assert failures(1) == failures(1) != failures(2)
    assert 5 < len(failures(1)) < 35


def test_a_killed_process_loses_handles_and_locks_but_no_bytes(disk: SimDisk) -> None:
    file = disk.open_write("/d/a")
    file.write_at(0, b"unsynced")
    disk.lock_directory("/d")
    neighbour = disk.another_process()
    disk.kill()
    for call in (lambda: file.write_at(0, b"x"), file.sync, lambda: disk.exists("/d")):
        with pytest.raises(ProcessDiedError):
            call()
    file.close()  # a finally of dead code does no harm
    restarted = disk.after_kill()
    assert read_whole(restarted, "/d/a") == b"unsynced"
    assert neighbour.exists("/d/a")
    restarted.lock_directory("/d").release()
    neighbour.crash()
    assert restarted.after_crash(keep_none).list_directory("/d") == []


def test_power_loss_ends_every_process_and_frees_locks(disk: SimDisk) -> None:
    neighbour = disk.another_process()
    neighbour.lock_directory("/d")
    disk.crash()
    with pytest.raises(ProcessDiedError):
        neighbour.exists("/d")
    disk.after_crash(keep_all).lock_directory("/d")


def test_a_disk_after_a_crash_has_everything_durable_and_crashes_again(disk: SimDisk) -> None:
    write(disk, "/d/a", 0, b"abc")
    disk.crash()
    second = disk.after_crash(keep_all)
    assert second.durability.pending() == []
    write(second, "/d/a", 3, b"def")
    write(second, "/d/b", 0, b"new")
    second.crash()
    third = second.after_crash(keep_none)
    assert (third.list_directory("/d"), read_whole(third, "/d/a")) == (["a"], b"abc")
    assert read_whole(second.after_crash(keep_all), "/d/a") == b"abcdef"


def test_forgotten_files_take_no_memory(disk: SimDisk) -> None:
    for _ in range(5):
        make_file(disk, "/d/a", b"x" * 1000)
        write(disk, "/d/a", 0, b"unsynced")
        disk.remove("/d/a")
        disk.sync_directory("/d")
    assert disk.durability.durable.contents == {}
    assert disk.durability.pending() == []


def test_the_trace_is_the_same_for_the_same_calls_and_differs_otherwise() -> None:
    def digest(size: int) -> str:
        disk = SimDisk(directories=["/d"])
        write(disk, "/d/a", 0, bytes(size))
        return disk.trace.digest()

    assert digest(3) == digest(3) != digest(4)
