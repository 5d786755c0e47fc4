"""Files of a log that others cut, zero or overwrite while it is in use: the next read notices.

On real files: what a read of a hole or of a file that was cut gives is the kernel's to say.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kits.storage.log_stories import NOW, batch_of
from millstream.kernels.header_chain import check_bytes
from millstream.model.errors import CorruptRecords, OperatingError, StorageFailed
from millstream.model.ids import LeaderEpoch, Offset
from millstream.model.limits import KIB
from millstream.runtime.clock import SystemClock
from millstream.runtime.disk import File
from millstream.runtime.os_disk import OsDisk
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.storage.segments import header_check
from millstream.testing.log_kit import PARTITION, SMALL_SEGMENTS, open_log, read_all

EPOCH = LeaderEpoch(0)
CONFIG = replace(SMALL_SEGMENTS, segment_bytes=32 * KIB, index_interval_bytes=4 * KIB)
VALUE = bytes(range(256)) * 2
BATCHES = 180

Damage = Callable[[str, int, int], None]


def zeroed(path: str, start: int, stop: int) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(bytes(stop - start))


def overwritten(path: str, start: int, stop: int) -> None:
    with open(path, "r+b") as file:
        file.seek(start)
        file.write((b"not a record " * (stop - start))[: stop - start])


def cut(path: str, start: int, stop: int) -> None:
    os.truncate(path, start)


def cut_and_grown(path: str, start: int, stop: int) -> None:
    """A hole, of which nothing is in the page cache."""
    size = Path(path).stat().st_size
    os.truncate(path, start)
    os.truncate(path, size)


DAMAGES: list[Damage] = [zeroed, overwritten, cut, cut_and_grown]
damages = pytest.mark.parametrize("damage", DAMAGES)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    opened = open_log(OsDisk(), SystemClock(), CONFIG, root=str(tmp_path))
    for number in range(BATCHES):
        put(opened.log, number)
    opened.log.set_high_watermark(opened.log.log_end)
    yield opened.log
    opened.abandon()


def put(log: Log, number: int) -> None:
    log.append_as_leader(batch_of(VALUE, stamps=[NOW + number]), leader_epoch=EPOCH)


def read(log: Log, offset: int, size_max: int = 1 << 20) -> bytes:
    found = log.read(Offset(offset), size_max=size_max, isolation=Isolation.HIGH_WATERMARK)
    return found.data.read()


@damages
@pytest.mark.parametrize("is_active", [False, True], ids=["closed", "active"])
@pytest.mark.parametrize("was_read", [False, True], ids=["unread", "read"])
def test_a_read_across_the_damage_notices_it(
    log: Log, damage: Damage, is_active: bool, was_read: bool
) -> None:
    """Wherever in the range it is; zeros were sent, and nobody but the consumer noticed."""
    segment = log.segments.active if is_active else log.segments.closed[1]
    start = int(segment.base_offset)
    if was_read:
        assert check_bytes(read(log, start), start)
    batch = len(batch_of(VALUE))
    damage(segment.log.path, 6 * batch, 9 * batch)
    with pytest.raises(OperatingError) as caught:
        read(log, start)
    if damage is cut:
        assert isinstance(caught.value, StorageFailed)
        assert str(segment.size_bytes) in str(caught.value)
    else:
        assert isinstance(caught.value, CorruptRecords)
    assert segment.log.path in str(caught.value)


@pytest.mark.parametrize("is_active", [False, True], ids=["closed", "active"])
def test_bytes_inside_a_batch_are_noticed_if_the_file_was_changed_after_our_last_write(
    log: Log, is_active: bool
) -> None:
    """Every header is as it was; they were sent, and only the consumer's CRC check failed."""
    segment = log.segments.active if is_active else log.segments.closed[1]
    start, batch = int(segment.base_offset), len(batch_of(VALUE))
    whole = read(log, start)
    assert check_bytes(whole, start)
    zeroed(segment.log.path, 4 * batch + 70, 5 * batch)
    later_ns = Path(segment.log.path).stat().st_mtime_ns + 10**9  # than a tick of its clock
    os.utime(segment.log.path, ns=(later_ns, later_ns))
    assert read(log, start, size_max=3 * batch) == whole[: 3 * batch]
    with pytest.raises(CorruptRecords, match=f"CRC at byte {4 * batch}"):
        read(log, start)
    if is_active:
        put(log, BATCHES)  # our own write does not hide it
        with pytest.raises(CorruptRecords, match=f"CRC at byte {4 * batch}"):
            read(log, start)


def test_a_file_that_was_only_touched_is_read(log: Log) -> None:
    whole = read(log, 0)
    os.utime(log.segments.closed[0].log.path, ns=(2**62, 2**62))
    assert [read(log, 0) for _ in range(2)] == [whole] * 2


@pytest.mark.parametrize("left", [0, 1, 60, 61, 500, 4096, 20_000, -1])
@pytest.mark.parametrize("is_active", [False, True], ids=["closed", "active"])
def test_a_cut_at_any_length_is_noticed_by_any_read(log: Log, left: int, is_active: bool) -> None:
    segment = log.segments.active if is_active else log.segments.closed[1]
    size = segment.size_bytes + left if left < 0 else min(left, segment.size_bytes - 1)
    read(log, segment.base_offset)
    os.truncate(segment.log.path, size)
    with pytest.raises(StorageFailed, match="shorter"):
        read(log, segment.base_offset, size_max=100)
    assert list(log.owner.failed_partitions) == [PARTITION]


def test_an_append_behind_a_cut_does_not_leave_zeros(log: Log) -> None:
    active = log.segments.active
    os.truncate(active.log.path, active.size_bytes - 5)
    with pytest.raises(StorageFailed, match="shorter"):
        put(log, BATCHES)
    assert Path(active.log.path).stat().st_size == active.size_bytes - 5


@pytest.mark.parametrize("damage", [one for one in DAMAGES if one is not cut])
def test_what_is_not_damaged_is_read_and_written_by_the_only_replica(
    log: Log, damage: Damage
) -> None:
    """A file that was cut fails its log."""
    segment = log.segments.closed[1]
    damage(segment.log.path, 0, segment.size_bytes)
    with pytest.raises(CorruptRecords):
        read(log, segment.base_offset)
    assert log.failure is None
    assert "in a read from offset" in log.owner.damaged_partitions[PARTITION]
    assert read(log, 0)
    put(log, BATCHES)
    log.set_high_watermark(log.log_end)
    after = log.segments.closed[2].base_offset
    assert [one.offset for one in read_all(log, start=after)] == list(range(after, BATCHES + 1))


def test_a_replica_that_others_can_replace_fails(log: Log) -> None:
    log.can_be_replaced = lambda: True
    segment = log.segments.closed[1]
    zeroed(segment.log.path, 0, segment.size_bytes)
    with pytest.raises(StorageFailed, match="at byte 0, in a read from offset"):
        read(log, segment.base_offset)
    assert list(log.owner.failed_partitions) == [PARTITION]
    with pytest.raises(StorageFailed):
        put(log, BATCHES)


def test_an_unchanged_file_is_checked_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second check would cost as much as the first, at every read."""
    path = log.segments.closed[0].log.path
    os.utime(path, ns=(1, 1))
    walks: list[int] = []
    check = header_check._check

    def counting(file: File, position: int, stop: int, end: int, offset: int) -> tuple[int, int]:
        walks.append(position)
        return check(file, position, stop, end, offset)

    monkeypatch.setattr(header_check, "_check", counting)
    first = read(log, 0, size_max=5000)
    assert [read(log, 0, size_max=5000) for _ in range(3)] == [first] * 3
    assert walks == [0]
    read(log, 3, size_max=10_000)  # from within on: only what comes after it
    assert len(walks) == 2
    assert walks[1] >= 5000
    os.utime(path, ns=(2, 2))
    read(log, 0, size_max=5000)
    assert walks[2:] == [0]
