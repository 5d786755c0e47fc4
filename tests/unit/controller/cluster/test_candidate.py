"""Who is the controller: one at a time, each with an epoch of its own, whatever gets lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kits.controller.membership_kit import Member, happens, played
from kits.coordination.coordination_kit import KEEPER, SimulatedWorld
from millstream.controller.cluster.candidate import Candidate, Elected
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.cluster.fenced_writes import Deposed, FencedWriter
from millstream.controller.cluster.nodes import CONTROLLER, CONTROLLER_EPOCH
from millstream.controller.cluster.registration import Registered
from millstream.coordination.port import Set
from millstream.model.ids import BrokerId
from millstream.runtime.randomness import SeededRandomness

LEDGER = "/story/ledger"


class Reign:
    """Stands for the controller's work: it writes as often as it can."""

    def __init__(self, stand: "Stand", incarnation: Registered, elected: Elected) -> None:
        self.stand = stand
        self.elected = elected
        self.session = incarnation.session
        self.writer = FencedWriter(self.session, epoch_version=elected.epoch_version)
        self.is_deposed = False

    async def run(self) -> None:
        if self.stand.failure is not None:
            raise self.stand.failure
        try:
            while True:
                found = await self.session.get(LEDGER)
                data = found.data + b"%d," % self.elected.controller_epoch
                await self.writer.write([[Set(path=LEDGER, data=data, version=found.stat.version)]])
                self.stand.written += 1
                await asyncio.sleep(0.05)
        except Deposed:
            self.stand.deposed += 1

    def depose(self) -> None:
        self.is_deposed = True


class Stand:
    """A broker that stands for election."""

    def __init__(self, world: SimulatedWorld, broker_id: int, *, loss: float = 0.0) -> None:
        self.reigns: list[Reign] = []
        self.written = self.deposed = 0
        self.failure: Exception | None = None
        self.changes: list[BrokerId | None] = []
        node = world.world.node(f"candidate{broker_id}")
        self.candidate: Candidate[Reign] = Candidate(
            BrokerId(broker_id),
            make_active=self.make,
            clock=node.clock,
            randomness=node.randomness,
            on_change=lambda: self.changes.append(self.candidate.controller_id),
        )
        self.member = Member(world, broker_id, loss=loss, while_registered=self.candidate.run)

    def make(self, incarnation: Registered, elected: Elected) -> Reign:
        self.reigns.append(Reign(self, incarnation, elected))
        return self.reigns[-1]

    @property
    def epochs(self) -> list[int]:
        return [one.elected.controller_epoch for one in self.reigns]

    def reigns_now(self) -> bool:
        return self.candidate.active is not None


Story = Callable[[SimulatedWorld, list[Stand]], Awaitable[None]]


def play(seed: int, story: Story, *, count: int = 2, loss: float = 0.0) -> None:
    async def whole(world: SimulatedWorld) -> None:
        await (await world.open("clerk")).create(LEDGER)
        stands = [Stand(world, number, loss=loss) for number in range(1, count + 1)]
        for one in stands:
            one.member.start()
        await happens(lambda: all(one.candidate.controller_id for one in stands), "one is known")
        await story(world, stands)
        for one in stands:
            await one.member.stop()
        assert not any(one.reigns_now() for one in stands)
        assert all(reign.is_deposed for one in stands for reign in one.reigns)

    played(seed, whole)


def test_one_of_two_is_elected_and_both_know() -> None:
    async def story(world: SimulatedWorld, stands: list[Stand]) -> None:
        leader, other = sorted(stands, key=lambda one: not one.reigns_now())
        assert (leader.reigns_now(), other.reigns_now()) == (True, False)
        assert other.candidate.controller_id == leader.member.broker_id
        assert leader.epochs == [1]
        await leader.member.stop()
        await happens(other.reigns_now, "the other follows")
        assert other.epochs == [2]
        assert leader.candidate.controller_id is None
        assert (await (await world.open("x")).get(CONTROLLER_EPOCH)).data == b"2"

    play(1, story)


def test_an_operator_asks_for_another_election() -> None:
    """By deleting `/controller`; the epoch goes on, and the old one stops at once."""

    async def story(world: SimulatedWorld, stands: list[Stand]) -> None:
        operator = await world.open("operator")
        await operator.delete(CONTROLLER, version=-1)
        await happens(lambda: sum(len(one.reigns) for one in stands) == 2, "another election")
        await happens(lambda: any(one.reigns_now() for one in stands), "somebody reigns")
        old = next(one for one in stands if 1 in one.epochs)
        assert old.reigns[0].is_deposed

    play(2, story)


def test_who_fails_as_controller_makes_room() -> None:
    async def story(world: SimulatedWorld, stands: list[Stand]) -> None:
        leader, other = sorted(stands, key=lambda one: not one.reigns_now())
        leader.failure = DamagedNode("/x", "for the story")
        await (await world.open("operator")).delete(CONTROLLER, version=-1)
        await happens(other.reigns_now, "the other takes over")

    play(3, story)


def test_a_damaged_node_keeps_nobody_from_serving_and_is_mended_by_hand() -> None:
    async def whole(world: SimulatedWorld) -> None:
        operator = await world.open("operator")
        await operator.create(LEDGER)
        await operator.create(CONTROLLER_EPOCH, b"many")
        one = Stand(world, 1)
        one.member.start()
        await asyncio.sleep(10)
        assert one.member.lifecycle.current is not None
        assert not one.reigns
        await operator.set(CONTROLLER_EPOCH, b"7", version=0)
        await happens(one.reigns_now, "it is elected")
        assert one.epochs == [8]
        await one.member.stop()

    played(7, whole)


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_an_election_whose_answer_was_lost(*, is_carried_out: bool) -> None:
    async def whole(world: SimulatedWorld) -> None:
        await (await world.open("clerk")).create(LEDGER)
        one = Stand(world, 1)
        one.member.losses.lose_next("multi", is_carried_out=is_carried_out)
        one.member.start()
        await happens(one.reigns_now, "it is elected")
        assert one.epochs == [1]
        assert one.member.losses.counts.total() == 1
        await one.member.stop()

    played(4, whole)


def test_a_deposed_controllers_late_write_changes_nothing() -> None:
    """I-16. It was cut off while it wrote; another was elected; then its write arrives."""

    async def story(world: SimulatedWorld, stands: list[Stand]) -> None:
        clerk = await world.open("clerk")
        leader, other = sorted(stands, key=lambda one: not one.reigns_now())
        reign = leader.reigns[0]
        late = FencedWriter(clerk, epoch_version=reign.elected.epoch_version)
        world.world.network.clog(leader.member.name, KEEPER, duration_s=20)
        await happens(other.reigns_now, "the other takes over")
        before = await clerk.get(LEDGER)
        with pytest.raises(Deposed):
            await late.write([[Set(path=LEDGER, data=b"late", version=before.stat.version)]])
        await asyncio.sleep(20)
        ledger = (await clerk.get(LEDGER)).data
        epochs = [int(one) for one in ledger.split(b",") if one]
        assert epochs == sorted(epochs)

    play(5, story)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 25))
def test_epochs_never_go_back_whatever_is_lost(seed: int) -> None:
    """The ledger is written behind the fence: its epochs grow, and no epoch reigned twice.

    Replay: pytest tests/unit/controller/cluster/test_candidate.py -k 'whatever_is_lost and [SEED]'.
    """

    async def story(world: SimulatedWorld, stands: list[Stand]) -> None:
        random = SeededRandomness(f"{seed}/story")
        for _ in range(6):
            await asyncio.sleep(random.between(0, 3))
            victim = random.choice(stands).member.name
            match random.integer(0, 3):
                case 0:
                    world.world.network.reset(victim, KEEPER)
                case 1:
                    world.world.network.reset(victim, KEEPER)
                    world.world.network.clog(KEEPER, victim, duration_s=random.between(0, 5))
                case _:
                    world.world.network.clog(victim, KEEPER, duration_s=random.between(0, 5))
        world.world.network.heal_all()
        await happens(lambda: any(one.reigns_now() for one in stands), "somebody reigns")
        ledger = (await (await world.open("clerk")).get(LEDGER)).data
        epochs = [int(one) for one in ledger.split(b",") if one]
        assert epochs == sorted(epochs)
        reigned = [epoch for one in stands for epoch in one.epochs]
        assert len(reigned) == len(set(reigned))
        assert sum(one.written for one in stands) <= len(epochs)

    play(seed, story, count=3, loss=0.2)
