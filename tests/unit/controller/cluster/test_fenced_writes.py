"""Groups become multis: in order, none split, none too large, each behind the fence (I-16)."""

import asyncio
from itertools import pairwise
from typing import cast

import pytest

from millstream.controller.cluster.fenced_writes import (
    Deposed,
    FencedWriter,
    ImageOutdated,
    pack_groups,
    size_of,
)
from millstream.controller.cluster.nodes import CONTROLLER_EPOCH
from millstream.coordination.checks import check_multi
from millstream.coordination.errors import BadVersion, MultiFailed, SessionLost
from millstream.coordination.port import (
    MULTI_BYTES_MAX,
    MULTI_OPERATIONS_MAX,
    Check,
    Create,
    Operation,
    Session,
)
from millstream.model.invariant import InvariantViolated
from millstream.runtime.randomness import SeededRandomness

FENCE = Check(path=CONTROLLER_EPOCH, version=4)


def group(number: int, count: int, size_bytes: int = 0) -> list[Operation]:
    return [Create(path=f"/g{number}/{one}", data=bytes(size_bytes)) for one in range(count)]


@pytest.mark.parametrize("seed", range(1, 31))
def test_packed(seed: int) -> None:
    random = SeededRandomness(seed)
    groups = [
        group(number, random.choice([1, 2, 100, 499]), random.choice([0, 10, 1000]))
        for number in range(random.integer(1, 40))
    ]
    multis = list(pack_groups(groups, FENCE))
    assert [one for multi in multis for one in multi[1:]] == [one for g in groups for one in g]
    where = {one.path: number for number, multi in enumerate(multis) for one in multi[1:]}
    for one in groups:
        assert len({where[part.path] for part in one}) == 1
    for multi in multis:
        assert multi[0] is FENCE
        assert len(multi) <= MULTI_OPERATIONS_MAX
        check_multi(multi)
    for before, metadata_follower in pairwise(multis):
        first_group = next(g for g in groups if g[0] is metadata_follower[1])
        is_full = len(before) + len(first_group) > MULTI_OPERATIONS_MAX
        size_bytes = sum(map(size_of, [*before, *first_group]))
        assert is_full or size_bytes > MULTI_BYTES_MAX, "there was room for one more"


def test_nothing_to_write_is_no_multi() -> None:
    assert list(pack_groups([], FENCE)) == []
    assert list(pack_groups([[]], FENCE)) == []


@pytest.mark.parametrize("bad", [group(1, 500), group(1, 1, MULTI_BYTES_MAX)])
def test_a_group_that_fits_no_multi_is_a_fault(bad: list[Operation]) -> None:
    with pytest.raises(InvariantViolated):
        list(pack_groups([bad], FENCE))


class Refusing:
    """A session that refuses the n-th multi."""

    def __init__(self, at: int, error: Exception) -> None:
        self.at = at
        self.error = error
        self.multis: list[list[Operation]] = []

    async def multi(self, operations: list[Operation]) -> list[None]:
        self.multis.append(operations)
        if len(self.multis) == self.at:
            raise self.error
        return [None] * len(operations)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MultiFailed(index=0, cause=BadVersion("")), Deposed),
        (MultiFailed(index=3, cause=BadVersion("")), ImageOutdated),
        (SessionLost(""), SessionLost),
    ],
)
def test_after_the_first_refusal_nothing_is_written_any_more(
    error: Exception, raised: type[Exception]
) -> None:
    session = Refusing(2, error)
    writer = FencedWriter(cast("Session", session), epoch_version=4)

    async def story() -> None:
        with pytest.raises(raised):
            await writer.write([group(number, 400) for number in range(4)])
        with pytest.raises(Deposed):
            await writer.write([group(9, 1)])

    asyncio.run(story())
    assert len(session.multis) == 2
    assert all(multi[0] == FENCE for multi in session.multis)
