"""Who tells what of a cluster: its leaderless partitions are counted once, by the controller."""

from typing import Any, cast

import pytest

from kits.broker.topic_handlers_kit import Desk
from millstream.broker.gauges import leaderless_count, offline_partition_count
from millstream.controller.image import NO_LEADER, PartitionImage, TopicImage
from millstream.controller.topics import new_topic_id
from millstream.model.ids import BrokerId, LeaderEpoch
from millstream.runtime.randomness import SeededRandomness

OTHER = BrokerId(2)


class Member:
    def __init__(self, *, is_active: bool) -> None:
        self.is_active = is_active


def of_another_broker(index: int, leader: BrokerId) -> PartitionImage:
    return PartitionImage(index, (OTHER,), (OTHER,), leader, LeaderEpoch(3), 0)


def desk(*, is_active: bool | None) -> Desk:
    """A cluster with a topic elsewhere, half of which nobody leads, and one here."""
    made = Desk()
    made.create("here")
    partitions = of_another_broker(0, NO_LEADER), of_another_broker(1, OTHER)
    topic = TopicImage("elsewhere", new_topic_id(SeededRandomness(1)), partitions, {})
    made.controller._image = made.controller.image.changed(put=[topic])
    if is_active is not None:
        made.services.membership = cast("Any", Member(is_active=is_active))
    return made


@pytest.mark.parametrize(("is_active", "told"), [(True, 1), (False, 0), (None, 1)])
def test_partitions_without_a_leader_are_told_by_the_controller_alone(
    is_active: bool | None, told: int
) -> None:
    assert leaderless_count(desk(is_active=is_active).services) == told


@pytest.mark.parametrize("is_active", [True, False])
def test_partitions_that_cannot_be_used_are_those_that_should_be_here(is_active: bool) -> None:
    assert offline_partition_count(desk(is_active=is_active).services) == 0
