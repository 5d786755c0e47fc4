"""Every place that finds no room says so of its log directory, and of no other (ADR 0006)."""

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from kits.controller.controller_kit import ME, any_configs, create, run
from kits.storage.compaction_kit import Bench, filled, sim_disk
from kits.storage.log_stories import batch_of
from kits.storage.manager_stories import ONE, TWO, Broker
from kits.storage.move_kit import A, B, Mover
from millstream.controller.standalone.controller import StandaloneController
from millstream.model.errors import DiskFull, OperatingError
from millstream.model.ids import LeaderEpoch
from millstream.model.limits import ROOM_PROBE_BYTES
from millstream.runtime.randomness import SeededRandomness
from millstream.storage import names
from millstream.storage.directories.log_directory import LogDirectory
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.record_batches import BatchSpec
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.disk_faults import DiskFault, DiskOperation

SEGMENTS = replace(SMALL_SEGMENTS, segment_bytes=1 << 20)


def no_room(path_part: str, operation: DiskOperation = "write") -> DiskFault:
    return DiskFault(operation=operation, errno=errno.ENOSPC, path_part=path_part, times=None)


def directory_of(broker: Broker) -> LogDirectory:
    (directory,) = broker.manager.directories
    return directory


@pytest.fixture
def broker() -> Broker:
    made = Broker(config=SEGMENTS)
    made.create(ONE)
    made.put(ONE, b"first")
    return made


def is_full(directory: LogDirectory) -> bool:
    """Read again each time: a type checker takes an attribute for what it was."""
    return directory.is_full


def refused(broker: Broker, fault: DiskFault, call: Callable[[], object]) -> LogDirectory:
    broker.disk.faults.plan(fault)
    with pytest.raises(DiskFull) as caught:
        call()
    directory = directory_of(broker)
    assert caught.value.directory == directory.path
    assert is_full(directory)
    assert directory.room.refused_writes == 1
    assert directory.failure is None
    return directory


def test_an_exhausted_quota_is_a_full_disk(broker: Broker) -> None:
    """Not a failed one: the directory stays online, and takes records when there is space."""
    fault = DiskFault(operation="write", errno=errno.EDQUOT, path_part=".log", times=1)
    refused(broker, fault, lambda: broker.put(ONE, b"second"))
    broker.put(ONE, b"third")
    assert broker.values(ONE) == [b"first", b"third"]


def test_an_append_that_does_not_fit(broker: Broker) -> None:
    refused(broker, no_room(".log"), lambda: broker.put(ONE, b"more"))


def test_an_append_as_follower_that_does_not_fit(broker: Broker) -> None:
    batch = batch_of(b"more", spec=BatchSpec(base_offset=1))
    log = broker.manager.get(ONE)
    refused(broker, no_room(".log"), lambda: log.append_as_follower(batch))


def test_a_roll_that_does_not_fit(broker: Broker) -> None:
    log = broker.manager.get(ONE)
    log.config = replace(SEGMENTS, segment_bytes=100)
    refused(broker, no_room(".timeindex"), lambda: broker.put(ONE, b"more"))


@pytest.mark.parametrize("is_blocking", [True, False])
def test_leader_epochs_that_do_not_fit(broker: Broker, is_blocking: bool) -> None:
    """Written by a flush, after the data."""
    log = broker.manager.get(ONE)
    log.append_as_leader(batch_of(b"more"), leader_epoch=LeaderEpoch(5))

    def flush() -> None:
        outcomes: list[OperatingError | None] = []
        broker.manager.flush(log, outcomes.append)
        (outcome,) = outcomes
        assert outcome is not None
        raise outcome

    refused(broker, no_room(names.LEADER_EPOCHS), log.flush if is_blocking else flush)


def test_a_partition_that_does_not_fit(broker: Broker) -> None:
    refused(broker, no_room(str(TWO)), lambda: broker.create(TWO))


def test_a_checkpoint_that_does_not_fit(broker: Broker) -> None:
    broker.disk.faults.plan(no_room(names.HIGH_WATERMARKS))
    broker.replicate(ONE)
    broker.manager.store_checkpoints()
    assert directory_of(broker).is_full


def test_a_cleaning_that_does_not_fit() -> None:
    bench = filled()
    sim_disk(bench).faults.plan(no_room(".cleaned"))
    bench.cleaner.run_once()
    bench.background.run_all()
    assert bench.opened.owner.is_full


def test_a_move_that_does_not_fit_is_the_targets() -> None:
    mover = Mover()
    mover.disk.faults.plan(no_room(f"{B}/"))
    mover.move()
    mover.steps.run_all()
    assert {one.path: one.is_full for one in mover.broker.manager.directories} == {
        A: False,
        B: True,
    }


def test_a_topic_whose_metadata_does_not_fit(broker: Broker) -> None:
    controller = StandaloneController(
        disk=broker.disk,
        background=InlineBackground(),
        randomness=SeededRandomness(1),
        directories=["/a"],
        broker_id=ME,
        check_configs=any_configs,
        on_full=broker.manager.note_full,
    )
    controller.start()
    broker.disk.faults.plan(no_room("/a/metadata/"))

    async def change() -> None:
        with pytest.raises(DiskFull):
            await create(controller, "t")

    run(change)
    assert directory_of(broker).is_full
    controller.close()


# -- room again --------------------------------------------------------------------------------


def test_it_is_over_when_a_probe_fits_and_nothing_was_refused_meanwhile(broker: Broker) -> None:
    directory = refused(broker, no_room(".log"), lambda: broker.put(ONE, b"more"))
    directory.check_room()
    assert is_full(directory), "refused since the last check"
    with pytest.raises(DiskFull):
        broker.put(ONE, b"more")
    directory.check_room()
    assert is_full(directory)
    assert (directory.room.refused_writes, directory.room.refused_in_episode) == (2, 2)
    broker.disk.faults.heal()
    directory.check_room()
    assert not is_full(directory)
    assert names.ROOM_PROBE not in broker.disk.list_directory(directory.path)
    broker.put(ONE, b"more")
    refused_again = no_room(".log")
    broker.disk.faults.plan(refused_again)
    with pytest.raises(DiskFull):
        broker.put(ONE, b"more")
    assert (directory.room.refused_writes, directory.room.refused_in_episode) == (3, 1)


def test_free_bytes_alone_do_not_end_it(broker: Broker) -> None:
    """A file system without inodes has free bytes, and takes no new file."""
    directory = refused(broker, no_room(".log"), lambda: broker.put(ONE, b"more"))
    broker.disk.faults.heal()
    operations: list[DiskOperation] = ["open", "write"]
    for operation in operations:
        broker.disk.faults.plan(no_room(names.ROOM_PROBE, operation))
        directory.check_room()
        directory.check_room()
        assert is_full(directory)
        assert directory.room.refused_writes == 1, "a probe is not a write of ours"
        assert names.ROOM_PROBE not in broker.disk.list_directory(directory.path)
        broker.disk.faults.heal()
    directory.check_room()
    assert not is_full(directory)


def test_a_probe_takes_no_bytes_that_a_client_may_need(broker: Broker) -> None:
    storage = broker.disk.storage
    storage.capacity_bytes = storage.used_bytes + 10
    with pytest.raises(DiskFull):
        broker.put(ONE, b"more")
    directory = directory_of(broker)
    assert directory.room.free_bytes == 10
    storage.capacity_bytes = storage.used_bytes + 2 * ROOM_PROBE_BYTES - 1
    broker.disk.faults.fail_next("write", errno.EIO, path_part=names.ROOM_PROBE)
    directory.check_room()
    directory.check_room()
    assert is_full(directory)
    assert directory.failure is None, "nothing was written"
    broker.disk.faults.heal()
    storage.capacity_bytes += 1
    directory.check_room()
    assert not is_full(directory)
    assert directory.room.free_bytes == 2 * ROOM_PROBE_BYTES


def test_a_disk_that_breaks_while_it_is_full_is_offline(broker: Broker) -> None:
    directory = refused(broker, no_room(".log"), lambda: broker.put(ONE, b"more"))
    directory.check_room()
    broker.disk.faults.fail_next("write", errno.EIO, path_part=names.ROOM_PROBE)
    directory.check_room()
    assert directory.failure is not None
    assert not is_full(directory)


def test_a_probe_that_a_crash_left_goes_at_the_next_start(broker: Broker) -> None:
    broker.write_file(f"/a/{names.ROOM_PROBE}", b"0" * 100)
    broker.restart()
    assert names.ROOM_PROBE not in broker.disk.list_directory("/a")
    assert broker.values(ONE) == [b"first"]


def test_no_descriptor_is_not_a_full_disk() -> None:
    bench = Bench()
    sim_disk(bench).faults.plan(DiskFault(operation="write", errno=errno.EMFILE))
    with pytest.raises(OperatingError):
        bench.put(a="1")
    assert not bench.opened.owner.is_full
