"""Blocks of producer ids: no id twice, whoever asks at once and whatever answer is lost (I-20)."""

import asyncio

import pytest

from kits.controller.membership_kit import Member, played
from kits.coordination.coordination_kit import KEEPER, SHORT_SESSION_MS, SimulatedWorld
from millstream.controller.cluster import nodes
from millstream.controller.cluster.producer_id_blocks import NoProducerIdBlock, ProducerIdBlocks
from millstream.coordination.errors import SessionLost
from millstream.coordination.port import Session
from millstream.model.ids import BrokerId
from millstream.runtime.randomness import SeededRandomness


def blocks_of(member: Member) -> ProducerIdBlocks:
    def session() -> Session | None:
        current = member.lifecycle.current
        return current.session if current is not None else None

    return ProducerIdBlocks(member.broker_id, session)


def test_blocks_follow_each_other_and_the_node_is_kafkas() -> None:
    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1).start().is_member()
        blocks = blocks_of(one)
        assert await blocks.allocate_producer_id_block() == range(1000)
        assert await blocks.allocate_producer_id_block() == range(1000, 2000)
        stored = await (await world.open("x")).get(nodes.PRODUCER_IDS)
        assert nodes.decode_producer_ids(stored.data) == range(1000, 2000)
        await one.stop()
        with pytest.raises(NoProducerIdBlock):
            await blocks.allocate_producer_id_block()

    played(1, story)


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_lost_answer(*, is_carried_out: bool) -> None:
    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1).start().is_member()
        one.losses.lose_next("set", is_carried_out=is_carried_out)
        assert await blocks_of(one).allocate_producer_id_block() == range(1000)
        assert await blocks_of(one).allocate_producer_id_block() == range(1000, 2000)
        await one.stop()

    played(2, story)


def test_two_sessions_of_one_broker_never_take_each_others_block_for_their_own() -> None:
    """The first one's write was lost on the way; the second wrote what the first would have."""

    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1).start().is_member()
        other = await Member(world, 2).start().is_member()
        twin = blocks_of(other)
        twin._broker_id = BrokerId(1)
        taken: list[range] = []

        async def between() -> None:
            taken.append(await twin.allocate_producer_id_block())

        one.losses.lose_next("set", is_carried_out=False)
        one.losses.before_retry = between
        taken.append(await blocks_of(one).allocate_producer_id_block())
        assert sorted(taken, key=lambda block: block.start) == [range(1000), range(1000, 2000)]
        await one.stop()
        await other.stop()

    played(3, story)


@pytest.mark.parametrize("seed", range(1, 13))
def test_brokers_that_ask_at_once_share_no_id(seed: int) -> None:
    """Replay of one seed:

    pytest tests/unit/controller/cluster/test_producer_id_blocks.py -k 'share_no_id and [SEED]'
    """

    async def story(world: SimulatedWorld) -> None:
        random = SeededRandomness(f"{seed}/story")
        members = [await Member(world, number, loss=0.3).start().is_member() for number in (1, 2)]
        taken: list[range] = []

        async def take(blocks: ProducerIdBlocks) -> None:
            for _ in range(12):
                try:
                    taken.append(await blocks.allocate_producer_id_block())
                except (NoProducerIdBlock, SessionLost):
                    await asyncio.sleep(0.5)
                await asyncio.sleep(random.between(0, 0.2))

        each = [blocks_of(one) for one in members]
        tasks = [asyncio.ensure_future(take(one)) for one in each for _ in range(2)]
        for _ in range(3):
            await asyncio.sleep(random.between(0, 1))
            victim = random.choice(members).name
            world.world.network.reset(victim, KEEPER)
            world.world.network.clog(
                KEEPER, victim, duration_s=random.between(0, 2 * SHORT_SESSION_MS / 1000)
            )
        await asyncio.gather(*tasks)
        starts = [block.start for block in taken]
        assert len(starts) == len(set(starts)) > 15
        assert all(block.start % 1000 == 0 and len(block) == 1000 for block in taken)
        for one in members:
            await one.stop()

    played(seed, story)
