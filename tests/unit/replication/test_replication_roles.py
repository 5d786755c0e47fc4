"""Partitions that are led, followed, given up and deleted as the metadata says."""

from uuid import UUID

import pytest

from kits.broker.data_plane import DataPlane
from millstream.controller.image import (
    ImageChange,
    MovedPartition,
    PartitionImage,
    TopicImage,
)
from millstream.model.errors import StorageFailed, UnknownPartition
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId, TopicPartition
from millstream.replication.errors import NotLeader
from millstream.replication.follower import Follower
from millstream.replication.partitions import Partitions
from millstream.runtime.disk import ShortFile
from millstream.runtime.scheduler import run_blocking

ME, OTHER = BrokerId(1), BrokerId(2)


class RecordedFetchers:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.followed: list[tuple[BrokerId, LeaderEpoch]] = []
        self.unfollowed = 0

    def follow(self, follower: Follower) -> None:
        self.followed.append((follower.state.leader, follower.state.leader_epoch))

    def unfollow(self, follower: Follower) -> None:
        assert not follower.is_open
        self.unfollowed += 1

    def ready(self, follower: Follower) -> None: ...


class Here:
    """One broker's partitions, and a topic of one partition."""

    def __init__(self) -> None:
        self.plane = DataPlane()
        self.fetchers = RecordedFetchers()
        self.partitions = Partitions(
            self.plane.logs,
            self.plane.settings,
            self.plane.table,
            broker_id=ME,
            fetchers=self.fetchers,
        )

    def topic(
        self,
        leader: int,
        *,
        epoch: int,
        partition_epoch: int = 0,
        replicas: tuple[int, ...] = (1, 2),
        number: int = 7,
    ) -> TopicImage:
        ids = tuple(map(BrokerId, replicas))
        one = PartitionImage(0, ids, ids, BrokerId(leader), LeaderEpoch(epoch), partition_epoch)
        return TopicImage("t", TopicId(UUID(int=number)), (one,), {})

    def create(self, leader: int, epoch: int = 0) -> None:
        self.partitions.apply(ImageChange(created=[self.topic(leader, epoch=epoch)]))

    def move(self, topic: TopicImage) -> None:
        self.partitions.apply(ImageChange(moved=[MovedPartition(topic, topic.partitions[0])]))

    def take(self, *topics: TopicImage) -> None:
        image = self.plane.controller.image
        self.partitions.attach(image.changed(put=topics))

    @property
    def role(self) -> str:
        try:
            return f"leads {self.partitions.get(('t', 0)).leader_epoch}"
        except NotLeader:
            follower = self.partitions.follower(("t", 0))
            return f"follows {follower.state.leader}" if follower is not None else "nothing"
        except UnknownPartition:
            return "unknown"

    def has_log(self) -> bool:
        return any(one.partition == ("t", 0) for one in self.plane.logs)


def test_roles_follow_the_metadata() -> None:
    here = Here()
    assert here.role == "unknown"
    here.create(ME)
    assert here.role == "leads 0"
    here.move(here.topic(OTHER, epoch=1, partition_epoch=1))
    assert here.role == "follows 2"
    assert here.plane.table.find(b"t", 0) is None
    here.move(here.topic(-1, epoch=2, partition_epoch=2))
    assert here.role == "follows -1"
    here.move(here.topic(ME, epoch=3, partition_epoch=3))
    assert here.role == "leads 3"
    assert here.fetchers.followed == [(2, 1), (-1, 2)]
    assert here.fetchers.unfollowed == 1


def test_what_is_older_is_not_taken() -> None:
    here = Here()
    here.create(ME, epoch=3)
    here.move(here.topic(OTHER, epoch=2, partition_epoch=9))
    assert here.role == "leads 3"
    here.move(here.topic(OTHER, epoch=5, partition_epoch=4))
    here.move(here.topic(ME, epoch=4, partition_epoch=3))
    here.take(here.topic(ME, epoch=4, partition_epoch=3))
    assert here.role == "follows 2"
    here.move(here.topic(ME, epoch=5, partition_epoch=3))
    assert here.role == "follows 2"
    here.move(here.topic(OTHER, epoch=4, partition_epoch=3, replicas=(2, 3)))
    assert here.has_log()


def test_a_replica_that_is_taken_away_is_deleted() -> None:
    here = Here()
    here.create(OTHER)
    assert here.has_log()
    here.move(here.topic(OTHER, epoch=0, partition_epoch=1, replicas=(2, 3)))
    assert here.role == "nothing"
    assert not here.has_log()
    assert here.fetchers.unfollowed == 1
    here.move(here.topic(OTHER, epoch=0, partition_epoch=2, replicas=(2, 1)))
    assert here.role == "follows 2"
    assert here.has_log()


def test_a_partition_of_others_is_known_and_not_held() -> None:
    here = Here()
    here.partitions.apply(ImageChange(created=[here.topic(OTHER, epoch=0, replicas=(2, 3))]))
    assert here.role == "nothing"
    assert not here.has_log()
    with pytest.raises(UnknownPartition):
        here.partitions.get(("t", 1))


def test_a_whole_image_brings_what_came_and_takes_what_went() -> None:
    here = Here()
    here.create(ME)
    here.take(here.topic(OTHER, epoch=1, partition_epoch=1))
    assert here.role == "follows 2"
    here.take()
    assert here.role == "unknown"
    assert not here.has_log()


def test_a_topic_that_was_deleted_and_made_anew_is_another() -> None:
    here = Here()
    here.create(ME)
    old, new = here.topic(ME, epoch=0), here.topic(ME, epoch=0, number=8)
    here.partitions.apply(ImageChange(created=[new], deleted=[old]))
    assert here.partitions.get(("t", 0)).topic_id == new.topic_id
    here.take(here.topic(OTHER, epoch=0, number=9))
    assert here.role == "follows 2"
    here.partitions.apply(ImageChange(deleted=[new]))
    assert here.role == "follows 2", "that one is gone already"


def test_strays_are_deleted_only_when_told_to() -> None:
    here = Here()
    here.create(ME)
    image = here.plane.controller.image
    again = Partitions(here.plane.logs, here.plane.settings, broker_id=ME)
    kept = image.changed(put=[here.topic(ME, epoch=1)])
    assert run_blocking(again.delete_strays_steps(kept)) == []
    remade = image.changed(put=[here.topic(ME, epoch=0, number=8)])
    assert here.has_log()
    assert run_blocking(again.delete_strays_steps(remade)) == [TopicPartition("t", 0)]
    again.attach(remade)
    assert again.get(("t", 0)).log_end == 0


def test_a_new_epoch_of_the_same_leader_is_told_to_sessions_of_the_old_one() -> None:
    here = Here()
    here.create(ME)
    leader, before = here.partitions.get(("t", 0)), here.partitions.generation
    here.move(here.topic(ME, epoch=1, partition_epoch=1))
    assert here.partitions.get(("t", 0)) is leader
    assert leader.leader_epoch == leader.slot.leader_epoch == 1
    assert here.partitions.generation > before


def test_leaderships_that_were_given_up_come_back_only_with_a_newer_state() -> None:
    """I-18."""
    here = Here()
    here.create(ME)
    here.partitions.close_all_leaderships()
    assert here.role == "nothing"
    here.take(here.topic(ME, epoch=0))
    assert here.role == "nothing"
    assert here.has_log()
    here.take(here.topic(ME, epoch=1, partition_epoch=1))
    assert here.role == "leads 1"
    here.partitions.close_all_leaderships()
    here.partitions.apply(ImageChange(deleted=[here.topic(ME, epoch=1)]))
    assert not here.has_log()


# -- logs that failed ----------------------------------------------------------------------------


def lost(here: Here) -> list[tuple[TopicId, int]]:
    return run_blocking(here.partitions.find_lost_steps())


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_a_partition_whose_directory_fails_is_lost(leader: BrokerId) -> None:
    here = Here()
    here.create(leader)
    assert (here.partitions.has_lost, lost(here)) == (False, [])
    here.plane.logs.directories[0].failed(OSError(5, "gone"))
    assert here.partitions.has_lost
    assert lost(here) == [(TopicId(UUID(int=7)), 0)]


def test_a_partition_whose_file_fails_alone_is_lost() -> None:
    here = Here()
    here.create(ME)
    here.partitions.get(("t", 0)).log.failed(ShortFile("/data/t-0/x"))
    assert here.plane.logs.directories[0].failure is None
    assert here.partitions.has_lost
    assert lost(here) == [(TopicId(UUID(int=7)), 0)]


def test_a_leader_without_its_log_leads_no_more_when_the_metadata_says_so() -> None:
    """Whoever keeps a state of its own there, and whoever waits, must hear of it."""
    here = Here()
    here.create(ME)
    leader = here.partitions.get(("t", 0))
    here.plane.logs.directories[0].failed(OSError(5, "gone"))
    here.move(here.topic(OTHER, epoch=1, partition_epoch=1))
    assert len(here.partitions) == 0
    assert here.partitions.follower(("t", 0)) is None
    assert here.plane.table.find(b"t", 0) is None
    assert leader._is_closed
    with pytest.raises(StorageFailed):
        here.partitions.get(("t", 0))
    assert lost(here) == [(TopicId(UUID(int=7)), 0)], "it is told until the metadata knows it"


def test_a_follower_without_its_log_follows_no_more() -> None:
    here = Here()
    here.create(OTHER)
    here.plane.logs.directories[0].failed(OSError(5, "gone"))
    here.move(here.topic(3, epoch=1, partition_epoch=1))
    assert here.fetchers.unfollowed == 1
    assert lost(here) == [(TopicId(UUID(int=7)), 0)]


def test_what_is_older_does_not_end_a_leadership() -> None:
    here = Here()
    here.create(ME, epoch=3)
    here.plane.logs.directories[0].failed(OSError(5, "gone"))
    here.move(here.topic(OTHER, epoch=2, partition_epoch=1))
    assert len(here.partitions) == 1


def test_a_replica_that_is_taken_away_or_deleted_is_not_lost() -> None:
    here = Here()
    here.create(ME)
    here.plane.logs.directories[0].failed(OSError(5, "gone"))
    here.move(here.topic(OTHER, epoch=1, partition_epoch=1, replicas=(2, 3)))
    assert lost(here) == []
    here.move(here.topic(OTHER, epoch=1, partition_epoch=2, replicas=(2, 1)))
    assert lost(here) == [(TopicId(UUID(int=7)), 0)]
    here.partitions.apply(ImageChange(deleted=[here.topic(OTHER, epoch=1, partition_epoch=2)]))
    assert lost(here) == []


def test_a_partition_that_there_was_no_room_for_is_not_lost() -> None:
    """It is tried again: nothing has failed."""
    here = Here()
    here.plane.disk.storage.capacity_bytes = 0
    here.create(OTHER)
    assert here.partitions.has_missing
    assert (here.partitions.has_lost, lost(here)) == (False, [])
