"""Placement of replicas over any cluster: what must hold whatever the racks and the chance."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kits.controller.controller_kit import brokers_of
from millstream.controller.placement import place
from millstream.runtime.randomness import SeededRandomness


@given(
    racks=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=8),
    fenced=st.sets(st.integers(1, 8), max_size=4),
    partition_count=st.integers(1, 40),
    factor=st.integers(1, 8),
    seed=st.integers(0, 10),
)
def test_replicas_differ_leaders_live_and_racks_are_even(
    racks: list[str | None], fenced: set[int], partition_count: int, factor: int, seed: int
) -> None:
    brokers = brokers_of(racks, fenced=sorted(fenced))
    live = [one.broker_id for one in brokers if not one.is_fenced]
    if factor > len(brokers) or not live:
        return
    placed = place(
        brokers,
        partition_count=partition_count,
        replication_factor=factor,
        randomness=SeededRandomness(seed),
    )
    rack_of = {one.broker_id: one.rack for one in brokers}
    sizes = Counter(racks)
    assert len(placed) == partition_count
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] in live
        used = Counter(rack_of[one] for one in replicas)
        # A rack has two more than another only where the other has no broker left.
        for rack, size in sizes.items():
            assert used[rack] == size or used[rack] >= max(used.values()) - 1
    leads = Counter(replicas[0] for replicas in placed)
    assert max(leads.values()) - min(leads[one] for one in live) <= 1


@given(count=st.integers(2, 7), factor=st.integers(1, 7), rounds=st.integers(1, 4))
def test_without_racks_every_broker_holds_the_same(count: int, factor: int, rounds: int) -> None:
    if factor > count:
        return
    placed = place(
        brokers_of([None] * count),
        partition_count=count * rounds,
        replication_factor=factor,
        randomness=SeededRandomness(rounds),
    )
    held = Counter(one for replicas in placed for one in replicas)
    assert set(held.values()) == {factor * rounds}
