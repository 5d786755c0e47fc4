"""Long random histories of a next-generation group, and the bugs they are there to catch.

A plant says what it must be caught as: a history that stumbles over something else on its way would
not find the bug itself.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kits.groups.consumer_group_walk import walk
from millstream.groups.consumer import leave as leaving
from millstream.groups.consumer import reconcile, regexes
from millstream.groups.consumer.core import Core
from millstream.groups.consumer.member import ConsumerMember
from millstream.groups.consumer.state import GroupState
from millstream.groups.consumer.topics import TopicFacts
from millstream.groups.records import keys
from millstream.groups.records.entries import Entry
from millstream.model.invariant import InvariantViolated

SEEDS = 60

Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(40))
def test_whatever_members_do_every_partition_has_one_owner_and_the_group_settles(
    seed: int,
) -> None:
    """I-27, I-28, I-31; and what the log says is all there is to know."""
    walk(seed)


def hands_over_before_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupState, "is_free", lambda *_: True)


def takes_silence_for_release(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reconcile, "_reports_any", lambda *_: False)


def accepts_commits_of_old_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerMember, "assignment_epoch", lambda *_: 0)


def forgets_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leaving, "fence_expired", lambda *_: False)


def never_looks_for_new_topics(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(regexes, "_schedule", lambda *_: None)


def does_not_notice_new_partitions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicFacts, "hash", property(lambda _: 7))


def keeps_partitions_of_the_fenced(patch: pytest.MonkeyPatch) -> None:
    def release(self: GroupState, *_: object) -> None:
        """The next one waits for ever."""

    patch.setattr(GroupState, "_release", release)


def knows_more_than_the_log(patch: pytest.MonkeyPatch) -> None:
    """State beside the records: a failover would lose it."""
    real = Core.apply

    def apply(self: Core, entry: Entry) -> None:
        real(self, entry)
        if self.state.is_live and isinstance(entry.key, keys.ConsumerGroupKey):
            self.state.metadata_hash ^= 1

    patch.setattr(Core, "apply", apply)


class Planted(NamedTuple):
    """A bug and what it must be caught as."""

    plant: Plant
    caught_as: str


PLANTED = (
    Planted(hands_over_before_release, "I-27 a partition with two owners"),
    Planted(takes_silence_for_release, "I-27 .* is read by"),
    Planted(accepts_commits_of_old_epochs, "I-28"),
    Planted(forgets_the_dead, "I-30|I-31"),
    Planted(never_looks_for_new_topics, "I-31"),
    Planted(does_not_notice_new_partitions, "I-31"),
    Planted(keeps_partitions_of_the_fenced, "another state"),
    Planted(knows_more_than_the_log, "another state"),
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.plant.__name__)
def test_planted_bugs_are_caught(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolated), match=planted.caught_as):
        walk_many()


def walk_many() -> None:
    for seed in range(SEEDS):
        walk(seed)
