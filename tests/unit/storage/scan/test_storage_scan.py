"""The offline scan: what is a problem, what is only a note, and how much is listed."""

from collections.abc import Callable

import pytest

from millstream.model.ids import LeaderEpoch, Offset, ProducerId
from millstream.runtime.disk import read_whole
from millstream.storage.producers.machine import Origin
from millstream.storage.scan.partition_scan import scan_checkpoints, scan_partition
from millstream.storage.scan.report import PROBLEMS_PER_FILE_MAX
from millstream.storage.segments.txn_index import AbortedTransaction
from millstream.testing.log_kit import open_log
from millstream.testing.record_batches import BatchSpec, build_batch, build_marker
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk

ROOT = "/data"
DIRECTORY = f"{ROOT}/events-0"


@pytest.fixture
def disk() -> SimDisk:
    """A closed log of several segments with an aborted transaction and index entries."""
    disk = SimDisk()
    opened = open_log(disk, ManualClock(), root=ROOT)
    spec = BatchSpec(producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    log, epoch = opened.log, LeaderEpoch(0)
    log.append_as_leader(build_batch([(b"k", b"v")], spec), leader_epoch=epoch)
    marker = build_marker(spec, is_commit=False)
    log.append_as_leader(marker, leader_epoch=epoch, origin=Origin.COORDINATOR)
    for number in range(120):
        stamped = BatchSpec(timestamp_ms=2_000 + number)
        log.append_as_leader(build_batch([(b"k", b"v")], stamped), leader_epoch=epoch)
    opened.close()
    return disk


def files(disk: SimDisk, suffix: str) -> list[str]:
    """Paths of one kind that are not empty, oldest first."""
    found = [f"{DIRECTORY}/{name}" for name in disk.list_directory(DIRECTORY)]
    return [path for path in found if path.endswith(suffix) and disk.size(path)]


def rewrite(disk: SimDisk, path: str, change: Callable[[bytes], bytes]) -> None:
    with disk.open_write(path) as file:
        data = change(file.read_at(0, file.size()))
        file.truncate(0)
        file.write_at(0, data)


def test_a_sound_partition_has_neither(disk: SimDisk) -> None:
    report = scan_partition(disk, DIRECTORY)
    assert (report.problems, report.notes, report.problem_count) == ([], [], 0)
    assert len(report.segments) > 2
    assert files(disk, ".txnindex")
    assert files(disk, ".snapshot")
    assert sum(one.record_count for one in report.segments) == 122


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
@pytest.mark.parametrize("tail_bytes", [24, 100, 200_000])
def test_zeros_at_the_end_of_the_newest_index_are_a_note(
    disk: SimDisk, kind: str, tail_bytes: int
) -> None:
    """Kafka preallocates; one that was killed never cut them off."""
    path = files(disk, kind)[-1]
    size = disk.size(path)
    rewrite(disk, path, lambda data: data + bytes(tail_bytes))
    report = scan_partition(disk, DIRECTORY)
    assert report.problems == []
    note = f"only zeros from byte {size} on, as a broker that was killed leaves it"
    assert report.notes == [f"{path}: {note}"]


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_entries_before_the_zeros_are_checked(disk: SimDisk, kind: str) -> None:
    path = files(disk, kind)[-1]
    rewrite(disk, path, lambda data: data[:-1] + bytes([data[-1] ^ 3]) + bytes(4_800))
    report = scan_partition(disk, DIRECTORY)
    assert report.problem_count == 1
    assert len(report.notes) == 1


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_zeros_in_an_older_index_are_one_problem(disk: SimDisk, kind: str) -> None:
    path = files(disk, kind)[0]
    size = disk.size(path)
    rewrite(disk, path, lambda data: data + bytes(200_000))
    report = scan_partition(disk, DIRECTORY)
    assert report.problems == [f"{path}: only zeros from byte {size} on"]
    assert report.notes == []


def test_zeros_between_entries_are_a_problem(disk: SimDisk) -> None:
    path = files(disk, ".index")[0]
    assert disk.size(path) > 8
    rewrite(disk, path, lambda data: data[:8] + bytes(8) + data[8:])
    (problem,) = scan_partition(disk, DIRECTORY).problems
    assert "entry (0, 0) comes after" in problem


def test_one_file_tells_only_its_first_problems(disk: SimDisk) -> None:
    path = files(disk, ".index")[0]
    rewrite(disk, path, lambda data: data + data[-8:] * 100_000)
    report = scan_partition(disk, DIRECTORY)
    assert report.problem_count == 100_000
    assert len(report.problems) == PROBLEMS_PER_FILE_MAX + 1
    assert report.problems[-1] == f"{path}: and {100_000 - PROBLEMS_PER_FILE_MAX:,} more"


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_every_wrong_byte_of_an_index_is_seen(disk: SimDisk, kind: str) -> None:
    path = files(disk, kind)[0]
    size = disk.size(path)
    for at in range(size):
        flip = lambda data, at=at: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]  # noqa: E731
        rewrite(disk, path, flip)
        assert scan_partition(disk, DIRECTORY).problems, at
        rewrite(disk, path, flip)
    assert scan_partition(disk, DIRECTORY).problems == []


def test_an_entry_that_points_between_batches_is_seen(disk: SimDisk) -> None:
    """Right in all but its place: one byte before the batch that it means."""
    path = files(disk, ".index")[0]
    position = int.from_bytes(read_whole(disk, path)[4:8], "big")
    rewrite(disk, path, lambda data: data[:4] + (position - 1).to_bytes(4, "big") + data[8:])
    (problem,) = scan_partition(disk, DIRECTORY).problems
    assert problem.endswith(f"should be at byte {position - 1}, where no batch begins")


def test_entries_behind_a_damaged_batch_are_one_problem(disk: SimDisk) -> None:
    log = files(disk, ".log")[0]
    rewrite(disk, log, lambda data: data[:100] + b"\xff" + data[101:])
    problems = scan_partition(disk, DIRECTORY).problems
    assert problems[0].startswith(f"{log}: a batch ")
    assert len(problems) == 3
    assert all("behind the last whole batch" in one for one in problems[1:])


def test_a_transaction_index_out_of_order_is_a_problem(disk: SimDisk) -> None:
    path = files(disk, ".txnindex")[0]
    rewrite(disk, path, lambda data: data * 2)
    (problem,) = scan_partition(disk, DIRECTORY).problems
    assert problem.startswith(f"{path}: not what markers could have caused: marker 1 ")
    entry = AbortedTransaction(ProducerId(7), Offset(0), Offset(1), Offset(0)).encode()
    rewrite(disk, path, lambda _: b"\xff" + entry[1:])
    (problem,) = scan_partition(disk, DIRECTORY).problems
    assert problem.startswith(f"{path}: not what markers could have caused: version ")


def test_a_torn_snapshot_is_a_note(disk: SimDisk) -> None:
    path = files(disk, ".snapshot")[0]
    rewrite(disk, path, lambda data: data[:-1])
    report = scan_partition(disk, DIRECTORY)
    assert report.problems == []
    assert report.notes == [f"{path}: is ignored at start: the CRC does not match"]


def test_metadata_that_tells_no_topic_is_a_problem(disk: SimDisk) -> None:
    path = f"{DIRECTORY}/partition.metadata"
    rewrite(disk, path, lambda _: b"version: 0\ntopic_id: none")
    assert scan_partition(disk, DIRECTORY).problems == [f"{path}: topic id 'topic_id: none'"]


def test_an_epoch_file_is_a_problem_when_damaged_and_a_note_when_empty(disk: SimDisk) -> None:
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    rewrite(disk, path, lambda data: data[:-1])
    (problem,) = scan_partition(disk, DIRECTORY).problems
    assert problem == f"{path}: line 3: the last line has no end"
    rewrite(disk, path, lambda _: b"")
    report = scan_partition(disk, DIRECTORY)
    assert report.problems == []
    assert report.notes == [f"{path}: is empty, so its content is unknown"]


def test_checkpoints_of_a_log_directory(disk: SimDisk) -> None:
    names = ["recovery-point", "replication", "log-start", "cleaner"]
    paths = [f"{ROOT}/{name}-offset-checkpoint" for name in names]
    for path in paths:
        rewrite(disk, path, lambda _: b"0\n1\nevents 0 5\n")
    assert scan_checkpoints(disk, ROOT).problems == []
    for path in paths:
        rewrite(disk, path, lambda _: b"0\n1\nevents 0 five\n")
        (problem,) = scan_checkpoints(disk, ROOT).problems
        assert problem == f"{path}: line 3: not a number: 'events 0 five'"
        rewrite(disk, path, lambda _: b"")
    report = scan_checkpoints(disk, ROOT)
    assert report.problems == []
    assert len(report.notes) == len(paths)
