"""The faults of a simulated cluster leave one good copy of everything acknowledged."""

from millstream.testing.history.cluster_views import (
    CommittedPartition,
    CommittedState,
    PartitionKey,
)
from millstream.testing.simulation.cluster.fault_budget import FaultBudget

KEY = PartitionKey("t", "id", 0)


def budget(
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    *,
    wounded: tuple[int, ...] = (),
    without_directory: tuple[int, ...] = (),
    last_known: int = -1,
) -> FaultBudget:
    partition = CommittedPartition(KEY, (1, 2, 3), isr[0] if isr else -1, 0, isr, elr, last_known)
    state = CommittedState({KEY: partition})
    return FaultBudget(
        lambda: state,
        is_promised=lambda key: key == KEY,
        wounded=set(wounded),
        without_directory=set(without_directory),
    )


def test_the_last_member_keeps_its_power() -> None:
    assert not budget((1,)).may_lose_power(1, [1, 2, 3])
    assert budget((1,)).may_lose_power(2, [1, 2, 3])
    assert budget((1, 2)).may_lose_power(1, [1, 2])
    assert not budget((1, 2)).may_lose_power(1, [1, 3])
    assert budget((1,), elr=(2,)).may_lose_power(1, [1, 2])


def test_whoever_was_wounded_is_no_good_copy() -> None:
    assert not budget((1, 2), wounded=(2,)).may_lose_power(1, [1, 2, 3])
    assert not budget((1, 2), wounded=(2,)).may_go_down(1, [1, 2, 3])
    assert budget((1, 2, 3), wounded=(2,)).may_go_down(1, [1, 2, 3])


def test_a_copy_in_a_directory_that_is_away_is_no_good_one() -> None:
    assert not budget((1, 2), without_directory=(2,)).may_lose_power(1, [1, 2, 3])
    assert not budget((1, 2), without_directory=(2,)).may_go_down(1, [1, 2, 3])
    assert budget((1, 2, 3), without_directory=(2,)).may_lose_power(1, [1, 2, 3])


def test_whoever_would_lead_for_what_it_had_keeps_its_power() -> None:
    """No replica is in sync any more: the last known leader has the only good copy."""
    assert not budget((), last_known=1).may_lose_power(1, [1, 2, 3])
    assert budget((), last_known=1).may_lose_power(2, [1, 2, 3])


def test_all_may_be_killed_while_nobody_lost_anything() -> None:
    assert budget((1,)).may_go_down(1, [1])


def test_what_is_not_promised_may_be_lost() -> None:
    state = CommittedState({KEY: CommittedPartition(KEY, (1,), 1, 0, (1,))})
    careless = FaultBudget(lambda: state, is_promised=lambda _: False, wounded=set())
    assert careless.may_lose_power(1, [1])
