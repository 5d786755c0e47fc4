"""Disks that fail, fill up or cannot be read: their own partitions suffer and no others."""

import errno

import pytest

from kits.storage.manager_stories import ONE, THREE, TOPIC_ID, TWO, Broker
from millstream.model.errors import (
    DiskFull,
    OffsetOutOfRange,
    OperatingError,
    StorageFailed,
    TooManyOpenFiles,
)
from millstream.model.ids import Offset, TopicPartition
from millstream.runtime.scheduler import run_blocking
from millstream.storage import names
from millstream.storage.config import DAY_MS
from millstream.storage.directories.clean_shutdown import is_present
from millstream.storage.log.log import Log
from millstream.storage.log.reader import Isolation
from millstream.storage.manager.log_manager import NewPartition
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.sim.crash_fates import keep_all
from millstream.testing.sim.disk_faults import DiskFault, DiskOperation

PATHS = ("/a", "/b")


def two_disks() -> tuple[Broker, TopicPartition, TopicPartition]:
    """A broker with one partition on each disk; (broker, the one on /a, the one on /b)."""
    broker = Broker(roots=PATHS)
    broker.create(ONE, TWO)
    for one in (ONE, TWO):
        broker.put(one, b"before")
    by_path = {log.owner.path: log.partition for log in broker.manager}
    return broker, by_path["/a"], by_path["/b"]


def use(broker: Broker, log: Log) -> None:
    """Everything that touches the disk, until something fails."""
    broker.put(log.partition, b"x")
    log.flush()
    log.truncate_to(Offset(0))
    broker.manager.store_checkpoints()
    log.owner.check_usable()


@pytest.mark.parametrize("operation", ["write", "sync", "open", "truncate"])
def test_a_failing_disk_takes_its_own_partitions_offline(operation: DiskOperation) -> None:
    broker, lost, kept = two_disks()
    broker.disk.faults.plan(
        DiskFault(operation=operation, errno=errno.EIO, path_part="/a/", times=None)
    )
    log = broker.manager.get(lost)
    with pytest.raises(StorageFailed) as failed:
        use(broker, log)
    assert failed.value.directory == "/a"
    assert broker.manager.offline_partitions == [lost]
    assert [log.partition for log in broker.manager] == [kept]
    with pytest.raises(StorageFailed):
        broker.manager.get(lost)
    broker.put(kept, b"after")
    broker.manager.get(kept).flush()
    broker.manager.store_checkpoints()
    broker.manager.run_retention()
    assert broker.values(kept) == [b"before", b"after"]


def test_after_a_failed_sync_nothing_is_written_or_synced_there_again() -> None:
    broker, lost, kept = two_disks()
    broker.disk.faults.fail_next("sync", path_part="/a/")
    with pytest.raises(StorageFailed):
        broker.manager.get(lost).flush()
    broker.disk.faults.heal()
    written = len(broker.disk.trace.events)
    broker.manager.store_checkpoints()
    broker.manager.run_retention()
    broker.manager.flush_due()
    broker.stop(epoch=3)
    later = broker.disk.trace.events[written:]
    assert [one for one in later if one[0] in ("write", "sync") and str(one[1])[:3] == "/a/"] == []
    assert not is_present(broker.disk, "/a")
    assert is_present(broker.disk, "/b")
    report = broker.start()
    assert report.unclean_directories == ["/a"]
    assert broker.values(lost) == [b"before"]
    assert broker.values(kept) == [b"before"]


def test_records_whose_sync_failed_are_not_served_as_durable() -> None:
    """The pages may be gone from the cache too: the log is closed to readers at once."""
    broker, lost, _ = two_disks()
    log = broker.manager.get(lost)
    broker.disk.faults.plan(
        DiskFault(operation="sync", errno=errno.EIO, path_part="/a/", drops_cache=True)
    )
    with pytest.raises(StorageFailed):
        log.flush()
    with pytest.raises(StorageFailed):
        log.read(Offset(0), size_max=100, isolation=Isolation.LOG_END)


@pytest.mark.parametrize("name", [names.RECOVERY_POINTS, names.HIGH_WATERMARKS, names.LOG_STARTS])
def test_a_checkpoint_that_cannot_be_stored_takes_the_directory_offline(name: str) -> None:
    broker, lost, kept = two_disks()
    log = broker.manager.get(lost)
    log.set_high_watermark(Offset(1))
    log.roll()
    log.flush()
    broker.disk.faults.fail_next("write", path_part=f"/a/{name}")
    try:
        if name == names.LOG_STARTS:
            with pytest.raises(StorageFailed):
                broker.manager.delete_records(lost, Offset(1))
        else:
            broker.manager.store_checkpoints()
    finally:
        assert broker.manager.offline_partitions == [lost]
    assert broker.values(kept) == [b"before"]


@pytest.mark.parametrize("how", ["renamed", "no lock", "unreadable"])
def test_a_directory_that_is_not_the_same_any_more_is_offline_after_a_look(how: str) -> None:
    broker, lost, kept = two_disks()
    run_blocking(broker.manager.check_directories_steps())
    assert broker.manager.offline_partitions == []
    if how == "renamed":
        broker.disk.rename("/a", "/c")
    elif how == "no lock":
        broker.disk.remove("/a/.lock")
    else:
        fault = DiskFault(operation="stat", errno=errno.EIO, path_part="/a", skip=1)
        broker.disk.faults.plan(fault)  # not for the append, which looks at its own file
    broker.put(lost, b"acknowledged, and nobody could know better")
    run_blocking(broker.manager.check_directories_steps())
    assert broker.manager.offline_partitions == [lost]
    with pytest.raises(StorageFailed, match="/a"):
        broker.put(lost, b"x")
    broker.put(kept, b"x")


def test_a_directory_without_what_it_must_have_is_offline_after_a_look() -> None:
    broker, lost, kept = two_disks()
    for root in PATHS:
        broker.disk.open_write(f"{root}/name").close()
    broker.manager.expect("name")
    run_blocking(broker.manager.check_directories_steps())
    assert broker.manager.offline_partitions == []
    broker.disk.remove("/a/name")
    run_blocking(broker.manager.check_directories_steps())
    assert broker.manager.offline_partitions == [lost]
    broker.put(kept, b"x")


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_mount_point", [False, True])
def test_no_partition_is_made_where_a_directory_was(
    monkeypatch: pytest.MonkeyPatch, *, is_late: bool, is_mount_point: bool
) -> None:
    """Not even before the next check: once the directory is back it would not be found."""
    broker = Broker(roots=PATHS)
    make_directories = broker.disk.make_directories

    def take_away(path: str = "") -> None:
        monkeypatch.undo()
        broker.disk.rename("/a", "/c")
        if is_mount_point:
            make_directories("/a")
        if path:
            make_directories(path)

    if is_late:
        monkeypatch.setattr(broker.disk, "make_directories", take_away)
    else:
        take_away()
    with pytest.raises(StorageFailed, match="/a failed: removed, renamed or unmounted"):
        broker.create(ONE)
    assert not broker.disk.exists(f"/a/{names.partition_directory(ONE)}")
    (log,) = broker.create(ONE)
    assert log.owner.path == "/b"


def test_a_look_that_comes_after_the_stop_finds_nothing_wrong() -> None:
    broker, _, _ = two_disks()
    (directory, _) = broker.manager.directories
    broker.stop()
    broker.disk.rename("/a", "/c")
    directory.check_health()
    assert directory.failure is None


def test_new_partitions_go_to_disks_that_work() -> None:
    broker, lost, _ = two_disks()
    broker.disk.faults.fail_directory("/a")
    with pytest.raises(StorageFailed):
        broker.put(lost, b"x")
    (log,) = broker.create(THREE)
    assert log.owner.path == "/b"
    with pytest.raises(StorageFailed):
        broker.create(lost)


def test_an_unreadable_disk_at_start_costs_only_its_partitions() -> None:
    broker, lost, kept = two_disks()
    broker.stop()
    broker.disk.faults.fail_directory("/a")
    report = broker.start()
    assert list(report.failed_directories) == ["/a"]
    assert broker.values(kept) == [b"before"]
    with pytest.raises(OperatingError):
        broker.manager.get(lost)
    with pytest.raises(StorageFailed):
        broker.manager.create(lost, TOPIC_ID, SMALL_SEGMENTS, is_new=False)
    broker.stop()
    broker.disk.faults.heal()
    broker.start()
    assert broker.values(lost) == [b"before"]


@pytest.mark.parametrize(
    ("operation", "path_part"),
    [
        ("list", "/a/events"),
        ("read", "/a/events"),
        ("stat", "/a/events"),
        ("read", names.RECOVERY_POINTS),
        ("open", names.HIGH_WATERMARKS),
        ("lock", "/a"),
        ("remove", "cleanshutdown"),
    ],
)
def test_any_failure_while_a_disk_is_loaded_costs_only_that_disk(
    operation: DiskOperation, path_part: str
) -> None:
    broker, _, kept = two_disks()
    broker.stop()
    fault = DiskFault(operation=operation, errno=errno.EIO, path_part=path_part, times=None)
    broker.disk.faults.plan(fault)
    if "/a" not in path_part:
        fault.times = 1  # the first directory is opened first
    report = broker.start()
    assert list(report.failed_directories) == ["/a"]
    assert broker.values(kept) == [b"before"]


def test_when_every_disk_failed_the_broker_does_not_start() -> None:
    broker, _, _ = two_disks()
    broker.stop()
    for path in PATHS:
        broker.disk.faults.fail_directory(path)
    with pytest.raises(StorageFailed):
        broker.start()
    with pytest.raises(StorageFailed):
        broker.create(THREE)


# -- full disks


def full(broker: Broker, room: int = 0) -> None:
    broker.disk.storage.capacity_bytes = broker.disk.storage.used_bytes + room


@pytest.mark.parametrize("room", [0, 1, 50, 200, 1000])
def test_a_full_disk_refuses_writes_serves_reads_and_forgives(room: int) -> None:
    """Row 8 of the fault table."""
    broker = Broker()
    broker.create(ONE, TWO)
    broker.fill(ONE, 30)
    broker.replicate(ONE)
    full(broker, room)
    with pytest.raises(DiskFull):
        broker.put(ONE, *[b"more"] * 1000)
    written = int(broker.manager.get(ONE).log_end)
    assert 30 <= written < 1030
    broker.manager.store_checkpoints()
    broker.manager.flush_due()
    broker.manager.run_retention()
    assert broker.manager.offline_partitions == []
    assert len(broker.values(ONE)) == written
    broker.disk.storage.capacity_bytes = None
    broker.put(ONE, b"again")
    broker.manager.store_checkpoints()
    broker.manager.get(ONE).flush()
    broker.lose_power()
    broker.start()
    assert len(broker.values(ONE)) == written + 1


def test_retention_makes_room_on_a_disk_without_any() -> None:
    """It must not need space to give space back."""
    config = SMALL_SEGMENTS.__class__(segment_bytes=2048, retention_bytes=3000)
    broker = Broker(config=config)
    broker.create(ONE)
    broker.fill(ONE, 60)
    broker.replicate(ONE)
    broker.manager.get(ONE).flush()
    broker.manager.store_checkpoints()
    full(broker)
    with pytest.raises(DiskFull):
        broker.put(ONE, bytes(100))
    assert broker.manager.run_retention() == 1
    broker.put(ONE, bytes(100))
    start = broker.manager.get(ONE).log_start
    assert start > 0
    broker.lose_power()
    broker.start()
    assert broker.manager.get(ONE).log_start == start


def test_a_partition_can_be_deleted_from_a_full_disk_and_made_again() -> None:
    broker = Broker()
    broker.create(ONE, TWO)
    broker.fill(ONE, 30)
    broker.replicate(ONE)
    broker.manager.delete_records(ONE, Offset(20))
    broker.manager.store_checkpoints()
    full(broker)
    broker.manager.delete(ONE)
    assert broker.manager.offline_partitions == []
    broker.put(TWO, b"there is room now")
    full(broker)
    with pytest.raises(DiskFull):
        broker.create(ONE)
    broker.disk.storage.capacity_bytes = None
    broker.create(ONE)
    broker.put(ONE, b"new")
    broker.kill()
    broker.start()
    assert broker.manager.get(ONE).log_start == 0
    assert broker.values(ONE) == [b"new"]


@pytest.mark.parametrize("room", range(0, 120, 8))
def test_a_creation_that_does_not_fit_leaves_nothing_behind(room: int) -> None:
    """A leftover would be found beside the real one at the next start."""
    broker = Broker(roots=PATHS)
    full(broker, room)
    try:
        broker.create(ONE)
    except DiskFull:
        assert not any(broker.disk.exists(f"{path}/events-0") for path in PATHS)
        broker.disk.storage.capacity_bytes = None
        broker.create(ONE)
    assert broker.manager.offline_partitions == []
    broker.disk.storage.capacity_bytes = None
    broker.restart()
    assert len(broker.manager) == 1


def test_deleting_records_on_a_full_disk_changes_nothing() -> None:
    broker = Broker()
    broker.create(ONE)
    broker.fill(ONE, 60)
    broker.replicate(ONE)
    full(broker)
    with pytest.raises(DiskFull):
        broker.manager.delete_records(ONE, Offset(25))
    assert broker.manager.get(ONE).log_start == 0
    assert len(broker.values(ONE)) == 60
    with pytest.raises(OffsetOutOfRange):
        broker.manager.delete_records(ONE, Offset(61))
    broker.disk.storage.capacity_bytes = None
    assert broker.manager.delete_records(ONE, Offset(25)) == 25
    assert broker.manager.delete_records(ONE, Offset(3)) == 25
    broker.kill()
    broker.start()
    assert broker.manager.get(ONE).log_start == 25


@pytest.mark.parametrize(
    ("number", "refusal"),
    [(errno.EIO, StorageFailed), (errno.ENOSPC, DiskFull), (errno.EMFILE, TooManyOpenFiles)],
)
def test_a_topic_id_that_cannot_be_written_is_told_as_such(
    number: int, refusal: type[OperatingError]
) -> None:
    broker = Broker()
    broker.create(ONE)
    broker.stop()
    broker.disk.remove(f"/a/events-0/{names.PARTITION_METADATA}")
    broker.start()
    broker.disk.faults.fail_next("open", number, path_part=names.PARTITION_METADATA)
    with pytest.raises(refusal):
        broker.create(ONE)


# -- creations that fail

CREATION_STEPS: list[tuple[DiskOperation, str]] = [
    ("make_directory", "events-0"),
    ("open", ".log"),
    ("open", names.PARTITION_METADATA),
    ("sync", names.PARTITION_METADATA),
    ("rename", names.PARTITION_METADATA),
    ("sync_directory", "/a/events-0"),
    ("sync_directory", "/a"),
]


@pytest.mark.parametrize("can_remove", [True, False])
@pytest.mark.parametrize(("operation", "path_part"), CREATION_STEPS)
def test_a_creation_repeated_in_another_directory_survives_a_restart(
    operation: DiskOperation, path_part: str, can_remove: bool
) -> None:
    """What the first try left must not stand in its way."""
    broker = Broker(roots=PATHS)
    broker.disk.faults.fail_next(operation, path_part=path_part)
    if not can_remove:
        broker.disk.faults.plan(
            DiskFault(operation="remove", errno=errno.EIO, path_part="/a", times=None)
        )
    with pytest.raises(StorageFailed):
        broker.create(ONE)
    assert can_remove != broker.disk.exists("/a/events-0") or operation == "make_directory"
    (log,) = broker.create(ONE)
    assert log.context.directory == "/b/events-0"
    broker.put(ONE, b"acked")
    log.flush()
    broker.disk.faults.heal()
    broker.lose_power(keep_all)
    report = broker.start()
    assert report.unusable_partitions == {}
    assert broker.values(ONE) == [b"acked"]
    assert not broker.disk.exists("/a/events-0")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_creation_that_fails_removes_only_what_it_made(number: int) -> None:
    broker = Broker()
    broker.disk.make_directories("/a/events-1")
    broker.write_file("/a/events-1/precious", b"from elsewhere")
    broker.disk.faults.fail_next("make_directory", number, path_part="events-0")
    wanted = [NewPartition(one, TOPIC_ID, SMALL_SEGMENTS) for one in (ONE, TWO)]
    with pytest.raises(OperatingError):
        broker.manager.create_many(wanted)
    assert broker.disk.exists("/a/events-1/precious")


def test_a_creation_beside_something_from_elsewhere_leaves_nothing_behind() -> None:
    broker = Broker()
    broker.disk.make_directories("/a/events-1")
    wanted = [NewPartition(one, TOPIC_ID, SMALL_SEGMENTS) for one in (ONE, TWO)]
    with pytest.raises(OperatingError, match="was not created by us"):
        broker.manager.create_many(wanted)
    assert not broker.disk.exists("/a/events-0")
    assert broker.disk.exists("/a/events-1")
    broker.create(ONE)


def test_a_stop_on_a_full_disk_loses_nothing() -> None:
    broker = Broker()
    broker.create(ONE, TWO)
    broker.fill(ONE, 30)
    broker.put(TWO, b"a")
    full(broker)
    broker.stop(epoch=4)
    broker.disk.storage.capacity_bytes = None
    report = broker.start()
    assert report.unclean_directories == ["/a"]
    assert len(broker.values(ONE)) == 30
    assert broker.values(TWO) == [b"a"]


def test_old_records_do_not_go_while_only_the_clock_is_wrong() -> None:
    """Retention goes by wall time: a jump back keeps everything."""
    config = SMALL_SEGMENTS.__class__(segment_bytes=2048, retention_ms=DAY_MS)
    broker = Broker(config=config)
    broker.create(ONE)
    broker.fill(ONE, 60)
    broker.replicate(ONE)
    broker.clock.jump_wall(-10 * DAY_MS)
    assert broker.manager.run_retention() == 0
