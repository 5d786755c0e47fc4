"""A broker's membership: one id, one broker, an epoch that grows, a loss that is told at once."""

import asyncio
import logging
from functools import partial

import pytest

from kits.controller.membership_kit import CLUSTER, Member, happens, played
from kits.coordination.coordination_kit import KEEPER, SHORT_SESSION_MS, SimulatedWorld
from millstream.controller.cluster import nodes
from millstream.controller.cluster.nodes import KnownBroker, Registration
from millstream.controller.cluster.registration import (
    BrokerIdTaken,
    CoordinationIsOlder,
    LogsAreMissing,
    Registered,
)
from millstream.controller.errors import InconsistentClusterId
from millstream.coordination.port import Session, SessionState
from millstream.model.ids import NO_BROKER_EPOCH, BrokerEpoch, BrokerId
from millstream.model.invariant import InvariantViolated
from millstream.runtime.randomness import SeededRandomness

SESSION_S = SHORT_SESSION_MS / 1000


async def registered_as(session: Session, broker_id: int) -> Registration:
    found = await session.get(nodes.broker_path(BrokerId(broker_id)))
    epoch = BrokerEpoch(found.stat.czxid)
    return nodes.decode_registration(BrokerId(broker_id), found.data, epoch=epoch)


def test_a_broker_registers_and_leaves() -> None:
    async def story(world: SimulatedWorld) -> None:
        reader = await world.open("reader")
        one = await Member(world, 1).start().is_member()
        told = await registered_as(reader, 1)
        assert told == one.registration._replace(epoch=one.epoch)
        assert one.events == [("registered", told.epoch)]
        await one.stop()
        assert await reader.exists(nodes.broker_path(one.broker_id)) is None
        assert one.events[1:] == [("lost", told.epoch)]
        assert one.lifecycle.current is None

    played(1, story)


def test_the_first_broker_names_the_cluster_and_a_stranger_is_refused() -> None:
    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1).start().is_member()
        current = one.lifecycle.current
        assert current is not None
        assert current.cluster_id == CLUSTER
        stranger = Member(world, 2, known_cluster="another-cluster").start()
        assert stranger.task is not None
        with pytest.raises(InconsistentClusterId):
            await stranger.task
        two = await Member(world, 2, known_cluster=CLUSTER).start().is_member()
        await two.stop()
        await one.stop()

    played(2, story)


def test_the_dead_predecessor_is_replaced_without_waiting() -> None:
    """A restart after a kill does not wait for the old session to expire."""

    async def story(world: SimulatedWorld) -> None:
        old = await Member(world, 1).start().is_member()
        epoch = old.epoch
        old.kill()
        started_s = world.world.loop.time()
        new = await Member(world, 1, name="again").start().is_member()
        assert world.world.loop.time() - started_s < SESSION_S / 2
        assert new.epoch > epoch
        await new.stop()

    played(3, story)


def test_another_broker_with_the_same_id_waits_and_is_refused() -> None:
    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1).start().is_member()
        started_s = world.world.loop.time()
        two = Member(world, 1, name="double", directory=77).start()
        assert two.task is not None
        with pytest.raises(BrokerIdTaken, match="id 1"):
            await two.task
        assert world.world.loop.time() - started_s >= SESSION_S
        assert two.events == []
        assert one.events == [("registered", one.epoch)]
        await one.stop()

    played(4, story)


def test_a_replacement_machine_gets_the_id_once_the_dead_one_has_expired() -> None:
    async def story(world: SimulatedWorld) -> None:
        old = await Member(world, 1).start().is_member()
        epoch = old.epoch
        old.kill()
        new = await Member(world, 1, name="new machine", directory=77).start().is_member()
        assert new.epoch > epoch
        await new.stop()

    played(5, story)


def test_a_lost_session_is_told_at_once_and_the_broker_comes_again_with_its_proof() -> None:
    """I-17, I-18. The leaderships are dropped in the call that tells it, before any other."""

    async def story(world: SimulatedWorld) -> None:
        reader = await world.open("reader")
        one = await Member(world, 1).start().is_member()
        epoch = one.epoch
        session = one.coordination.sessions[0]
        states: list[tuple[SessionState, int]] = []
        session.add_listener(lambda state: states.append((state, len(one.events))))
        one.cut()

        async def is_gone() -> bool:
            return await reader.exists(nodes.broker_path(one.broker_id)) is None

        while not await is_gone():
            await world.pause()
        assert one.events == [("registered", epoch)]  # nobody can know yet
        one.mend()
        await happens(lambda: len(one.events) == 3, "it came again")
        assert one.events[1] == ("lost", epoch)
        assert (SessionState.LOST, 2) in states  # told before whoever listens later
        assert one.epoch > epoch
        assert (await registered_as(reader, 1)).previous_epoch == epoch
        await one.stop()

    played(6, story)


def test_a_service_that_is_away_and_back_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millstream.controller.registration")

    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1).start().is_member()
        session = one.coordination.sessions[0]
        one.cut()
        await happens(lambda: session.state is SessionState.SUSPENDED, "it is away")
        one.mend()
        await happens(lambda: session.state is SessionState.CONNECTED, "it is back")
        await one.stop()

    played(7, story)
    told = [one.getMessage() for one in caplog.records if "service" in one.getMessage()]
    assert told == ["coordination service unreachable", "coordination service reachable again"]


def test_a_broker_whose_disk_failed_comes_again_without_proof() -> None:
    """What it had under its last epoch is not all still there."""

    async def story(world: SimulatedWorld) -> None:
        reader = await world.open("reader")
        one = await Member(world, 1, previous_epoch=BrokerEpoch(1)).start().is_member()
        assert (await registered_as(reader, 1)).previous_epoch == 1
        one.has_failed_disk = True
        for _ in range(2):
            epoch = one.epoch
            one.cut()
            while await reader.exists(nodes.broker_path(one.broker_id)) is not None:
                await world.pause()
            one.mend()
            await happens(lambda: one.events[-1][1] > epoch, "it came again")  # noqa: B023 - now
            told = await registered_as(reader, 1)
            assert (told.previous_epoch, told.earlier_epochs) == (NO_BROKER_EPOCH, ())
        await one.stop()

    played(6, story)


def test_epochs_that_a_controller_may_have_seen_last_are_told_until_it_has_seen_a_newer() -> None:
    async def story(world: SimulatedWorld) -> None:
        operator = await world.open("operator")
        one = await Member(world, 1, previous_epoch=BrokerEpoch(1)).start().is_member()
        epochs = [BrokerEpoch(1), one.epoch]

        async def come_again() -> Registration:
            count = len(one.events) + 2
            await operator.delete(nodes.broker_path(one.broker_id), version=-1)
            await happens(lambda: len(one.events) == count, "it came again")
            epochs.append(one.epoch)
            return await registered_as(operator, 1)

        told = await come_again()
        assert (told.previous_epoch, told.earlier_epochs) == (epochs[1], (epochs[0],))
        told = await come_again()
        assert (told.previous_epoch, told.earlier_epochs) == (epochs[2], tuple(epochs[:2]))
        assert all(told.is_proof_of(epoch) for epoch in epochs[:3])
        one.lifecycle.note_seen(epochs[2])
        told = await come_again()
        assert (told.previous_epoch, told.earlier_epochs) == (epochs[3], (epochs[2],))
        await one.stop()

    played(15, story)


def test_a_registration_that_somebody_deletes_is_made_anew() -> None:
    async def story(world: SimulatedWorld) -> None:
        operator = await world.open("operator")
        one = await Member(world, 1).start().is_member()
        epoch = one.epoch
        await operator.delete(nodes.broker_path(one.broker_id), version=-1)
        await happens(lambda: len(one.events) == 3, "it came again")
        assert one.events[1] == ("lost", epoch)
        assert one.epoch > epoch
        await one.stop()

    played(7, story)


def test_a_service_that_numbers_from_lower_on_is_refused_in_a_sentence() -> None:
    """I-17. Restored from an older backup, or emptied: the broker's logs would be unknown."""

    async def story(world: SimulatedWorld) -> None:
        reader = await world.open("reader")
        one = Member(world, 1, previous_epoch=BrokerEpoch(10_000)).start()
        assert one.task is not None
        with pytest.raises(CoordinationIsOlder, match=r"epoch 10000 before.*older backup.*remove"):
            await one.task
        assert one.events == []
        assert await reader.exists(nodes.broker_path(one.broker_id)) is None

    played(11, story)


async def remember(session: Session, broker_id: int, epoch: int) -> None:
    """As a controller does it."""
    for path in ("/millstream", nodes.KNOWN_BROKERS):
        if await session.exists(path) is None:
            await session.create(path)
    data = nodes.encode_known_broker(KnownBroker(BrokerEpoch(epoch)))
    await session.create(nodes.known_broker_path(BrokerId(broker_id)), data)


def test_a_service_that_forgot_an_epoch_is_refused_though_its_numbers_are_higher() -> None:
    """An ensemble begins a new range of numbers at every start, a restored one too."""

    async def story(world: SimulatedWorld) -> None:
        reader = await world.open("reader")
        await remember(reader, 1, 3)
        one = Member(world, 1, seen_epoch=BrokerEpoch(4)).start()
        assert one.task is not None
        with pytest.raises(CoordinationIsOlder, match="epoch 4 before, there it is 3"):
            await one.task
        assert one.events == []
        same = await Member(world, 1, name="same", seen_epoch=BrokerEpoch(3)).start().is_member()
        await same.stop()

    played(12, story)


def test_directories_of_an_earlier_time_do_not_say_that_nothing_is_missing() -> None:
    async def story(world: SimulatedWorld) -> None:
        reader = await world.open("reader")
        await remember(reader, 1, 3)
        one = Member(world, 1, complete_since=BrokerEpoch(2)).start()
        assert one.task is not None
        with pytest.raises(
            LogsAreMissing, match=r"used in epoch 2: .* epoch 3.*cluster\.directories"
        ):
            await one.task
        assert one.events == []
        same = Member(world, 1, name="same", complete_since=BrokerEpoch(3)).start()
        epoch = (await same.is_member()).epoch
        # Under its next epoch, after a lost session, it knows of everything itself.
        data = nodes.encode_known_broker(KnownBroker(epoch))
        await reader.set(nodes.known_broker_path(same.broker_id), data, version=-1)
        await reader.delete(nodes.broker_path(same.broker_id), version=-1)
        await happens(lambda: len(same.events) == 3, "it came again")
        await same.stop()

    played(15, story)


def test_a_broker_that_was_forgotten_on_purpose_may_come_again() -> None:
    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1, seen_epoch=BrokerEpoch(1)).start().is_member()
        await one.stop()

    played(13, story)


def test_what_a_controller_has_seen_is_asked_for_after_a_lost_session() -> None:
    """The service was exchanged for an older one while the broker ran."""

    async def story(world: SimulatedWorld) -> None:
        operator = await world.open("operator")
        one = await Member(world, 1).start().is_member()
        one.lifecycle.note_seen(one.epoch)
        await remember(operator, 1, one.epoch - 1)
        await operator.delete(nodes.broker_path(one.broker_id), version=-1)
        assert one.task is not None
        with pytest.raises(CoordinationIsOlder):
            await one.task
        assert [event for event, _ in one.events] == ["registered", "lost"]

    played(14, story)


def test_what_runs_beside_a_registration_ends_with_it() -> None:
    lives: list[tuple[str, BrokerEpoch]] = []

    async def beside(incarnation: Registered) -> None:
        lives.append(("began", incarnation.epoch))
        try:
            await asyncio.Event().wait()
        finally:
            lives.append(("ended", incarnation.epoch))

    async def story(world: SimulatedWorld) -> None:
        one = await Member(world, 1, while_registered=beside).start().is_member()
        first = one.epoch
        await (await world.open("operator")).delete(nodes.broker_path(one.broker_id), version=-1)
        await happens(lambda: len(one.events) == 3, "it came again")
        second = one.epoch
        await one.stop()
        assert lives == [("began", first), ("ended", first), ("began", second), ("ended", second)]

    played(8, story)


def test_a_fault_beside_a_registration_ends_the_membership_as_it_is() -> None:
    """Not wrapped into a group, in which nobody would look for it."""

    async def beside(_incarnation: Registered) -> None:
        raise InvariantViolated("for the story")

    async def story(world: SimulatedWorld) -> None:
        one = Member(world, 1, while_registered=beside).start()
        assert one.task is not None
        with pytest.raises(InvariantViolated, match="for the story"):
            await asyncio.gather(one.task)
        assert [event for event, _ in one.events] == ["registered", "lost"]

    with pytest.raises(InvariantViolated, match="for the story"):
        played(10, story)


def test_close_ends_it_also_while_there_is_no_service() -> None:
    async def story(world: SimulatedWorld) -> None:
        one = Member(world, 1)
        one.cut()
        one.start()
        await asyncio.sleep(15)
        await one.stop()
        assert one.events == []

    played(9, story)


@pytest.mark.parametrize("seed", range(1, 13))
def test_however_many_answers_are_lost_there_is_one_registration_and_epochs_grow(
    seed: int,
) -> None:
    """Replay of one seed:

    pytest tests/unit/controller/cluster/test_registration.py -k 'epochs_grow and [SEED]'
    """

    async def story(world: SimulatedWorld) -> None:
        random = SeededRandomness(f"{seed}/story")
        reader = await world.open("reader")
        members = [Member(world, number, loss=0.3).start() for number in (1, 2)]
        for _ in range(5):
            await asyncio.sleep(random.between(0, 3))
            victim = random.choice(members)
            world.world.network.reset(victim.name, KEEPER)
            world.world.network.clog(KEEPER, victim.name, duration_s=random.between(0, 5))
        world.world.network.heal_all()
        for one in members:
            await one.is_member()
            await happens(partial(_is_settled, one), "the connection stays")
            assert (await registered_as(reader, one.broker_id)).epoch == one.epoch
            epochs = [epoch for event, epoch in one.events if event == "registered"]
            assert epochs == sorted(set(epochs))
            scheduler = [event for event, _ in one.events]
            assert scheduler == ["registered", "lost"] * (len(scheduler) // 2) + ["registered"]
            await one.stop()

    played(seed, story)


def _is_settled(one: Member) -> bool:
    current = one.lifecycle.current
    return current is not None and current.session.state is SessionState.CONNECTED
