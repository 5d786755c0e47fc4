"""A shard survives whatever its clients send.

Replay one seed with `pytest tests/property/test_shard_hostile.py -k "[SEED]"`.
"""

from collections import Counter
from typing import Any

import pytest

from kits.groups.shard_hostile import Hostile
from millstream.groups.classic.core import Core
from millstream.groups.classic.states import Event, GroupState
from millstream.groups.consumer import conversion
from millstream.groups.consumer.embedded import decode_subscription, encode_assignment
from millstream.model.ids import MemberId
from millstream.model.invariant import InvariantViolated
from millstream.wire.primitives import MalformedFrame

SEEDS = range(1, 101)
STEPS = 200


def live(seed: int, steps: int = STEPS) -> Counter[str]:
    """A history, and the calm after it; gives what was seen."""
    world = Hostile(seed)
    for _ in range(steps):
        world.step()
    world.calm_down()
    return world.seen


def live_all() -> None:
    for seed in SEEDS:
        live(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_asked_is_answered_or_refused_and_others_are_served(seed: int) -> None:
    live(seed)


def test_the_histories_see_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 31):
        seen.update(live(seed))
    wanted = {"upgrade": 20, "downgrade": 10, "failover": 20, "topic deleted": 10, "LogFull": 20}
    wanted |= {"join_group": 50, "sync_group": 20, "consumer_group_heartbeat": 50}
    wanted |= {"FencedInstance": 3, "InvalidRegularExpression": 3, "RebalanceInProgress": 20}
    assert {name: seen[name] for name in wanted if seen[name] < wanted[name]} == {}


def test_an_unreadable_subscription_that_is_refused_too_late_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: the way back to the classic protocol fails on it, and with it whoever leaves."""
    real = encode_assignment

    def strict(assignment: Any, topics: Any, subscription: Any) -> bytes:
        decode_subscription(subscription)
        return real(assignment, topics, subscription)

    monkeypatch.setattr(conversion, "encode_assignment", strict)
    with pytest.raises(MalformedFrame):
        live_all()


def test_a_converted_group_that_still_waits_for_its_members_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: it is not forgotten who has yet to ask for its assignment."""
    real = Core.move

    def move(self: Core, event: Event) -> None:
        if event is Event.REMOVED and self.state is GroupState.COMPLETING:
            self.pending_sync.add(MemberId("gone"))
        real(self, event)

    monkeypatch.setattr(Core, "move", move)
    with pytest.raises(InvariantViolated, match="I-31"):
        live_all()
