"""A multi whose answer was lost: carried out once, whatever happened, or known not to be."""

from collections.abc import Awaitable, Callable

import pytest

from kits.coordination.coordination_kit import SimulatedWorld, World
from millstream.coordination.errors import MultiFailed, MultiUnproved, NodeExists
from millstream.coordination.port import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NodeKind,
    NodeStat,
    Operation,
    Session,
    Set,
)
from millstream.coordination.proofs import multi_with_proof
from millstream.model.invariant import InvariantViolated
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.flaky_session import FlakySession, ReplyLosses

FENCE, NODE, OTHER = "/story/fence", "/story/node", "/story/other"

Tale = Callable[[FlakySession, Session], Awaitable[None]]


def play(tale: Tale, seed: int = 1) -> None:
    """With a session that loses answers, and one that does not."""
    world = SimulatedWorld(seed)

    async def story(_: World) -> None:
        losses = ReplyLosses(SeededRandomness(f"{seed}/losses"))
        unsure = FlakySession(await world.open("one"), losses)
        sure = await world.open("two")
        for path in (FENCE, NODE):
            await sure.create(path, b"old")
        await tale(unsure, sure)

    world.play(story)


def fenced(*operations: Operation) -> list[Operation]:
    return [Check(path=FENCE, version=0), *operations]


@pytest.mark.parametrize("is_carried_out", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_it_is_made_once(times: int, *, is_carried_out: bool) -> None:
    async def tale(unsure: FlakySession, sure: Session) -> None:
        for _ in range(times):
            unsure.losses.lose_next("multi", is_carried_out=is_carried_out)
        operations = fenced(
            Set(path=NODE, data=b"new", version=0),
            Create(path=OTHER, data=b"x"),
            Create(path=f"{OTHER}/e", kind=NodeKind.EPHEMERAL),
        )
        if is_carried_out and times > 1:
            del unsure.losses.planned[1:]  # later ones are refused, and a refusal is an answer
        results = await multi_with_proof(unsure, operations)
        assert results[0] is None
        assert isinstance(results[1], NodeStat)
        assert results[1].version == 1
        assert results[2:] == [OTHER, f"{OTHER}/e"]
        assert (await sure.get(NODE)).stat.version == 1

    play(tale)


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_a_deletion_and_a_set_without_version_behind_a_fence(*, is_carried_out: bool) -> None:
    async def tale(unsure: FlakySession, sure: Session) -> None:
        await sure.create(OTHER)
        unsure.losses.lose_next("multi", is_carried_out=is_carried_out)
        operations = fenced(
            Set(path=NODE, data=b"new", version=ANY_VERSION), Delete(path=OTHER, version=0)
        )
        await multi_with_proof(unsure, operations)
        assert (await sure.get(NODE)).data == b"new"
        assert await sure.exists(OTHER) is None

    play(tale)


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_who_fails_the_fence_is_told_so_whatever_became_of_it(*, is_carried_out: bool) -> None:
    """Somebody else is in charge between the two attempts, and has gone on."""

    async def tale(unsure: FlakySession, sure: Session) -> None:
        unsure.losses.lose_next("multi", is_carried_out=is_carried_out)

        async def another_is_elected() -> None:
            await sure.set(FENCE, b"2", version=0)

        unsure.losses.before_retry = another_is_elected
        with pytest.raises(MultiFailed) as failure:
            await multi_with_proof(unsure, fenced(Set(path=NODE, data=b"new", version=0)))
        assert failure.value.index == 0

    play(tale)


def test_a_fenced_one_that_was_refused_was_not_carried_out() -> None:
    async def tale(unsure: FlakySession, sure: Session) -> None:
        await sure.create(OTHER, b"theirs")
        unsure.losses.lose_next("multi", is_carried_out=False)
        with pytest.raises(MultiFailed) as failure:
            await multi_with_proof(
                unsure,
                fenced(Set(path=NODE, data=b"new", version=0), Create(path=OTHER, data=b"x")),
            )
        assert failure.value.index == 2
        assert isinstance(failure.value.cause, NodeExists)
        assert (await sure.get(NODE)).data == b"old"

    play(tale)


def test_a_refusal_without_doubt_is_a_refusal() -> None:
    async def tale(unsure: FlakySession, _: Session) -> None:
        with pytest.raises(MultiFailed):
            await multi_with_proof(unsure, [Set(path=NODE, data=b"old", version=7)])

    play(tale)


def test_the_same_words_of_somebody_else_are_not_taken_for_ones_own() -> None:
    """Both nodes look as ours would have left them, but two transactions wrote them."""

    async def tale(unsure: FlakySession, sure: Session) -> None:
        unsure.losses.lose_next("multi", is_carried_out=False)
        await sure.set(NODE, b"new", version=0)
        await sure.create(OTHER, b"x")
        with pytest.raises(MultiUnproved):
            await multi_with_proof(
                unsure,
                [Set(path=NODE, data=b"new", version=0), Create(path=OTHER, data=b"x")],
            )

    play(tale)


@pytest.mark.parametrize("is_carried_out", [True, False])
def test_an_election_is_told_by_the_owner(*, is_carried_out: bool) -> None:
    async def tale(unsure: FlakySession, sure: Session) -> None:
        operations: list[Operation] = [
            Create(path=OTHER, kind=NodeKind.EPHEMERAL),
            Set(path=NODE, data=b"1", version=0),
        ]
        unsure.losses.lose_next("multi", is_carried_out=is_carried_out)
        if is_carried_out:
            assert (await multi_with_proof(unsure, operations))[0] == OTHER
            return

        async def the_other_is_first() -> None:
            await sure.multi(operations)

        unsure.losses.before_retry = the_other_is_first
        with pytest.raises((MultiFailed, MultiUnproved)):
            await multi_with_proof(unsure, operations)

    play(tale)


@pytest.mark.parametrize(
    "operation",
    [
        Set(path=NODE, data=b"", version=ANY_VERSION),
        Create(path=NODE, kind=NodeKind.PERSISTENT_SEQUENTIAL),
    ],
)
def test_what_cannot_be_proved_is_not_tried(operation: Operation) -> None:
    async def tale(unsure: FlakySession, _: Session) -> None:
        with pytest.raises(InvariantViolated):
            await multi_with_proof(unsure, [operation])

    play(tale)


@pytest.mark.parametrize("seed", range(1, 9))
def test_counting_up_with_lost_answers_counts_every_step_once(seed: int) -> None:
    """Replay of one seed:

    pytest tests/unit/coordination/test_coordination_multi_proofs.py -k 'counting and [SEED]'
    """

    async def tale(unsure: FlakySession, sure: Session) -> None:
        unsure.losses.probability = 0.4
        for number in range(40):
            one = await multi_with_proof(
                unsure, fenced(Set(path=NODE, data=str(number).encode(), version=number))
            )
            assert isinstance(one[1], NodeStat)
            assert one[1].version == number + 1
        assert (await sure.get(NODE)).stat.version == 40
        assert unsure.losses.counts["multi carried out"] > 3
        assert unsure.losses.counts["multi not carried out"] > 3

    play(tale, seed)
