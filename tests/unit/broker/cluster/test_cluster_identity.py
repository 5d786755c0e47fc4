"""Directories of a broker alone and of a cluster's are not mixed up: logs would be deleted."""

import pytest

from kits.controller.controller_kit import ROOT
from millstream.broker.cluster.identity import ClusterIdentity
from millstream.controller.errors import (
    DirectoryNotOfThisCluster,
    DirectoryOfCluster,
    InconsistentClusterId,
)
from millstream.controller.identity import DIRECTORIES_FILE, EPOCH_FILE
from millstream.controller.standalone.controller import StandaloneController
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.runtime.disk import remove_tree, write_atomically
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.directories import clean_shutdown
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.disk import SimDisk

DIRECTORIES = [ROOT, "/other"]


def identity(disk: SimDisk, seed: int = 1) -> ClusterIdentity:
    made = ClusterIdentity(
        disk, DIRECTORIES, broker_id=BrokerId(1), randomness=SeededRandomness(seed)
    )
    made.read()
    made.leave_out(())
    return made


def standalone_controller(disk: SimDisk) -> StandaloneController:
    return StandaloneController(
        disk=disk,
        background=InlineBackground(),
        randomness=SeededRandomness(4),
        directories=DIRECTORIES,
        broker_id=BrokerId(1),
    )


def test_directories_keep_their_ids_once_they_are_a_members() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    first = identity(disk)
    assert first.cluster_id is None
    assert first.new_cluster_id
    first.complete("the cluster")
    again = identity(disk, seed=2)
    assert again.cluster_id == "the cluster"
    assert again.directory_id == first.directory_id
    again.check_logs(5)


def test_logs_that_came_from_elsewhere_are_not_taken() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    fresh = identity(disk)
    fresh.check_logs(0)
    with pytest.raises(DirectoryNotOfThisCluster, match="3 logs"):
        fresh.check_logs(3)


def test_metadata_of_a_broker_alone_is_noticed_until_it_is_a_members() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    controller = standalone_controller(disk)
    controller.start()
    controller.close()
    lone = identity(disk)
    assert lone.was_standalone
    lone.complete(controller.image.cluster_id)
    assert not identity(disk).was_standalone


def test_directory_of_a_cluster_is_not_for_a_broker_alone() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    identity(disk).complete("the cluster")
    with pytest.raises(DirectoryOfCluster, match=r"zookeeper\.connect"):
        standalone_controller(disk).start()


def test_directories_of_two_clusters_are_refused() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    identity(disk).complete("one")
    path = "/other/meta.properties"
    text = b"version=1\nnode.id=1\ncluster.id=two\n"
    write_atomically(disk, path, text)
    with pytest.raises(InconsistentClusterId):
        identity(disk)


def test_the_epoch_that_was_seen_is_kept_in_every_directory() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    first = identity(disk)
    assert first.seen_epoch == NO_BROKER_EPOCH
    first.complete("the cluster")
    first.keep_epoch(BrokerEpoch(77))
    disk.remove(f"{ROOT}/{EPOCH_FILE}")
    assert identity(disk).seen_epoch == 77


def test_an_epoch_that_cannot_be_read_says_nothing() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    for text in (b"", b"-5\n", b"seven", b"9" * 40):
        write_atomically(disk, f"{ROOT}/{EPOCH_FILE}", text)
        assert identity(disk).seen_epoch == NO_BROKER_EPOCH


# -- directories that are not there ----------------------------------------------------------------


def member(disk: SimDisk, *directories: str, seed: int = 1) -> ClusterIdentity:
    """A start with these in `log.dirs`, up to where the directories are this broker's."""
    made = ClusterIdentity(
        disk, directories, broker_id=BrokerId(1), randomness=SeededRandomness(seed)
    )
    made.read()
    made.leave_out([one.name for one in made.withheld])
    made.complete("the cluster")
    return made


def stop(disk: SimDisk, *directories: str, logs: int) -> None:
    """A clean one, that leaves one log in each."""
    for number, one in enumerate(directories):
        disk.make_directories(f"{one}/t-{number}")
        clean_shutdown.write(disk, one, BrokerEpoch(9), log_count=logs)


@pytest.mark.parametrize(
    ("configured", "told"),
    [
        ([ROOT], "not in log.dirs any more"),
        ([ROOT, "/third"], "not in log.dirs any more"),
        ([ROOT, "/other"], "not mounted there"),
    ],
)
@pytest.mark.parametrize("is_clean", [True, False])
def test_directory_that_is_not_there_is_missed(
    configured: list[str], told: str, is_clean: bool
) -> None:
    disk = SimDisk(directories=[*DIRECTORIES, "/third"])
    member(disk, *DIRECTORIES)
    if is_clean:
        stop(disk, *DIRECTORIES, logs=2)
    disk.rename("/other", "/elsewhere")
    disk.make_directories("/other")  # an empty mount point
    for seed in (2, 3):  # and at the next start it is missed still
        again = member(disk, *configured, seed=seed)
        (gone,) = again.withheld
        assert (gone.name, gone.path) == ("/other", "/other")
        assert told in gone.reason
        assert DIRECTORIES_FILE in gone.reason
        assert disk.list_directory("/other") == []
    remove_tree(disk, "/other")
    disk.rename("/elsewhere", "/other")
    assert member(disk, *sorted({*configured, "/other"}), seed=4).withheld == []


def test_directory_that_moved_is_there() -> None:
    """Paths may change; ids count."""
    disk = SimDisk(directories=DIRECTORIES)
    member(disk, *DIRECTORIES)
    disk.rename("/other", "/moved")
    assert member(disk, ROOT, "/moved", seed=2).withheld == []
    disk.rename("/moved", "/gone")
    (gone,) = member(disk, ROOT, seed=3).withheld
    assert gone.path == "/moved"


def test_another_directory_in_its_place_is_not_it() -> None:
    disk = SimDisk(directories=[*DIRECTORIES, "/third"])
    member(disk, *DIRECTORIES, "/third")
    disk.rename("/other", "/elsewhere")
    disk.rename("/third", "/other")
    (gone,) = member(disk, *DIRECTORIES, seed=2).withheld
    assert gone.name.startswith("/other (")
    assert "another directory" in gone.reason


def test_directory_without_logs_may_be_taken_away() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    member(disk, *DIRECTORIES)
    stop(disk, ROOT, logs=1)
    disk.rename("/other", "/elsewhere")
    assert member(disk, ROOT, "/new", seed=2).withheld == []
    disk.remove(f"{ROOT}/.kafka_cleanshutdown")
    assert member(disk, ROOT, "/new", seed=3).withheld == [], "it was forgotten"


def test_what_it_held_is_given_up_by_removing_the_lists() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    member(disk, *DIRECTORIES)
    disk.rename("/other", "/elsewhere")
    assert member(disk, ROOT, seed=2).withheld
    disk.remove(f"{ROOT}/{DIRECTORIES_FILE}")
    assert member(disk, ROOT, seed=3).withheld == []


def test_list_that_nobody_wrote_says_nothing() -> None:
    disk = SimDisk(directories=DIRECTORIES)
    member(disk, *DIRECTORIES)
    write_atomically(disk, f"{ROOT}/{DIRECTORIES_FILE}", b"rubbish")
    assert member(disk, *DIRECTORIES, seed=2).withheld == []
    disk.rename("/other", "/elsewhere")
    assert member(disk, ROOT, seed=3).withheld, "it was written again"
