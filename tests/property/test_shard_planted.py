"""The random worlds of a shard catch the bugs they are for: each is planted here.

A plant says what it must be caught as, so that it is not found by stumbling over something else.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kits.groups.shard_world import BOTH, Broken, Kinds, World
from millstream.groups import admin, kinds
from millstream.groups import replay as applying
from millstream.groups.classic.core import Core as ClassicCore
from millstream.groups.classic.group import ClassicGroup
from millstream.groups.consumer.core import Core as ConsumerCore
from millstream.groups.consumer.group import ConsumerGroup
from millstream.groups.consumer.state import GroupState
from millstream.groups.offsets import requests
from millstream.groups.offsets.machine import Offsets
from millstream.groups.shard import Shard
from millstream.model.ids import Offset
from millstream.model.invariant import InvariantViolated

SEEDS = 60
STEPS = 150

Plant = Callable[[pytest.MonkeyPatch], None]


def an_offset_is_seen_before_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    real = Offsets.append_packed

    def append(self: Offsets, key: Any, packed: Any, at: int, producer_id: Any) -> None:
        real(self, key, packed, at, producer_id)
        self.on_high_watermark(Offset(at + 1))

    patch.setattr(Offsets, "append_packed", append)


def a_commit_of_an_old_generation_is_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClassicGroup, "check_commit", lambda *_: None)


def a_commit_of_an_old_epoch_is_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConsumerGroup, "check_commit", lambda *_: None)


def a_tombstone_of_an_offset_is_lost_on_delete(patch: pytest.MonkeyPatch) -> None:
    real = requests.delete_all
    patch.setattr(requests, "delete_all", lambda *given: real(*given)[1:])


def the_tombstone_of_the_group_is_lost_on_delete(patch: pytest.MonkeyPatch) -> None:
    def tombstones(group: Any) -> list[Any]:
        return kinds.tombstones(group)[:-1]

    patch.setattr(admin, "kinds", SimpleNamespace(**vars(kinds) | {"tombstones": tombstones}))


def a_partition_is_given_before_it_is_released(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupState, "is_free", lambda *_: True)


def heartbeats_do_not_count(patch: pytest.MonkeyPatch) -> None:
    for core in (ClassicCore, ConsumerCore):
        real = core.touch

        def touch(self: Any, member: Any, *now: Any, real: Any = real) -> None:
            if not getattr(self, "sessions", None) or self.sessions.of(member.member_id) is None:
                real(self, member, *now)

        patch.setattr(core, "touch", touch)


def groups_that_only_have_offsets_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """By the next coordinator."""
    patch.setattr(applying, "add_simple", lambda *_: None)


def what_is_read_is_not_what_was_written(patch: pytest.MonkeyPatch) -> None:
    """Tombstones of members are not applied when the log is read."""
    real = Shard.apply

    def apply(self: Shard, entry: Any, *more: Any) -> None:
        if entry.value is not None or "Member" not in type(entry.key).__name__:
            real(self, entry, *more)

    patch.setattr(Shard, "apply", apply)


PLANTS: list[tuple[Plant, str, Kinds]] = [
    (an_offset_is_seen_before_the_high_watermark, "I-29", BOTH),
    (a_commit_of_an_old_generation_is_accepted, "I-28", BOTH[:1]),
    (a_commit_of_an_old_epoch_is_accepted, "I-28", BOTH[1:]),
    (a_tombstone_of_an_offset_is_lost_on_delete, "I-29", BOTH),
    (the_tombstone_of_the_group_is_lost_on_delete, "I-29", BOTH),
    (a_partition_is_given_before_it_is_released, "I-27", BOTH[1:]),
    # One that is alive and was removed goes on reading what the next one is given.
    (heartbeats_do_not_count, "I-27|I-30|I-31", BOTH[:1]),
    (groups_that_only_have_offsets_are_forgotten, "I-29", BOTH),
    (what_is_read_is_not_what_was_written, "I-29", BOTH[1:]),
]


@pytest.mark.parametrize(("plant", "number", "kinds_of"), PLANTS)
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, number: str, kinds_of: Kinds
) -> None:
    plant(monkeypatch)
    with pytest.raises((Broken, InvariantViolated), match=number):
        live(kinds_of)


def live(kinds_of: Kinds) -> None:
    """Many worlds, as `test_shard_world.py` has them."""
    for seed in range(SEEDS):
        world = World(seed, kinds=kinds_of)
        for step in range(STEPS):
            world.step()
            if step % 10 == 0:
                world.check_reload()
        world.calm_down()
