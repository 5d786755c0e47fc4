"""Groups of both protocols in one shard, in random histories with faults and failovers.

Replay one seed with `pytest "tests/property/test_shard_world.py::TEST[KIND-SEED]"`, the name that
a failure is told with. Hypothesis draws the same steps itself and makes what it finds small.
"""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kits.groups.shard_clients import ConsumerClient, CooperativeClient, StaticClient
from kits.groups.shard_world import BOTH, GROUPS, Kinds, World

STEPS = 150
NEW: Kinds = BOTH[1:]
COOPERATIVE: Kinds = ((CooperativeClient, "coop"),)
STATIC: Kinds = ((StaticClient, "static"),)
KINDS: dict[str, Kinds] = {
    "classic": BOTH[:1],
    "consumer": NEW,
    "both": BOTH,
    "cooperative": COOPERATIVE,
    "cooperative and new": COOPERATIVE + NEW,
    "static": STATIC,
    "static and new": STATIC + NEW,
}


def live(world: World, steps: int = STEPS) -> None:
    """A history, and the calm after it."""
    for step in range(steps):
        world.step()
        if step % 10 == 0:
            world.check_reload()
    world.calm_down()
    world.check_reload()


@pytest.mark.parametrize("seed", range(1, 13))
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_happens_groups_share_keep_their_offsets_and_settle(kind: str, seed: int) -> None:
    """I-27 to I-31."""
    live(World(seed, kinds=KINDS[kind]))


def begin_twice(world: World) -> None:
    """A rebalance begins anew before it is over, and then one of the new protocol comes."""
    numbers = range(len(world.clients) // len(GROUPS))
    new = [n for n in numbers if isinstance(world.clients[n], ConsumerClient)]
    stays, goes = world.random.sample([n for n in numbers if n not in new], 2)
    for number in (*new, goes):
        world.leave(number)
    for _ in range(4):
        world.act(stays)
        world.pass_time(100)
    for number in (goes, stays, stays):
        world.act(number)
    world.leave(goes)
    world.act(world.random.choice(new))


def live_restlessly(world: World, steps: int = 200) -> None:
    """No faults, but consumers of one group that hardly ever stay until a rebalance is over."""
    draw = world.random
    for _ in range(steps):
        number, part = draw.randrange(len(world.clients) // len(GROUPS)), draw.random()
        is_new = isinstance(world.clients[number], ConsumerClient)
        if part < 0.03:
            begin_twice(world)
        elif part < 0.1:
            world.crash(number)
        elif part < 0.25:
            world.leave(number)
        elif part < 0.4:
            world.pass_time(draw.choice((100, 1_000, 3_000)))
        elif is_new and part < 0.7:
            world.leave(number)  # the group goes back to the classic protocol
        else:
            world.act(number)
    world.calm_down()


@pytest.mark.parametrize("seed", range(1, 41))
def test_whoever_comes_and_goes_in_a_rebalance_nobody_reads_what_another_one_reads(
    seed: int,
) -> None:
    """I-27, I-31: slow cooperative consumers, and new ones between their joins and their syncs."""
    kinds = KINDS["cooperative and new"]
    live_restlessly(World(seed, kinds=kinds, initial_rebalance_delay_ms=0))


def test_the_worlds_see_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(1, 17):
        world = World(seed)
        live(world)
        seen.update(world.seen)
    wanted = {"failover": 20, "refuse": 20, "past": 10, "delete": 20, "rebalance": 50, "deleted": 5}
    wanted |= {"upgrade": 10, "downgrade": 5, "expire": 5, "fetch": 50}
    assert {name: seen[name] for name in wanted if seen[name] < wanted[name]} == {}


Clients = st.integers(0, 3)


class Shards(RuleBasedStateMachine):
    """The steps of a world; each checks by itself. One group of all, so that they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(0)

    @rule(client=Clients, times=st.integers(1, 4))
    def act(self, client: int, times: int) -> None:
        for _ in range(times):
            self.world.act(client)
            self.world.pass_time(500)

    @rule(client=Clients)
    def commit(self, client: int) -> None:
        self.world.commit(client)

    @rule(client=Clients)
    def commit_with_past(self, client: int) -> None:
        self.world.commit_with_past(client)

    @rule()
    def commit_as_nobody(self) -> None:
        self.world.commit_as_nobody(GROUPS[0])

    @rule(is_stable=st.booleans())
    def fetch(self, *, is_stable: bool) -> None:
        self.world.fetch(GROUPS[0], is_stable=is_stable)

    @rule(client=Clients, is_crash=st.booleans())
    def go(self, client: int, *, is_crash: bool) -> None:
        (self.world.crash if is_crash else self.world.leave)(client)

    @rule()
    def delete(self) -> None:
        self.world.delete_group(GROUPS[0])

    @rule(is_late=st.booleans())
    def expire(self, *, is_late: bool) -> None:
        self.world.expire(is_late=is_late)

    @rule(ms=st.sampled_from([100, 1_000, 3_000, 30_000]))
    def pass_time(self, ms: int) -> None:
        self.world.pass_time(ms)

    @rule()
    def refuse(self) -> None:
        self.world.refuse_for_once()

    @rule()
    def hold(self) -> None:
        self.world.hold()

    @rule(part=st.sampled_from([0.2, 0.4, 1.0]))
    def advance(self, part: float) -> None:
        self.world.advance(part)

    @rule(part=st.sampled_from([0.0, 0.5, 1.0]))
    def fail_over(self, part: float) -> None:
        self.world.fail_over(part)

    @rule()
    def grow(self) -> None:
        self.world.grow()

    def teardown(self) -> None:
        self.world.check_reload()
        self.world.calm_down()


TestShards = Shards.TestCase
TestShards.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
