"""The checks of a cluster find what they are for: every promise is broken by hand once."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from millstream.testing.history.cluster_invariants import (
    Excuses,
    check_transition,
    check_view,
    count_truncations,
)
from millstream.testing.history.cluster_liveness import (
    differing_replicas,
    not_in_sync,
    unaware_leaders,
    without_leader,
)
from millstream.testing.history.cluster_views import (
    BatchView,
    BrokerView,
    ClusterView,
    CommittedPartition,
    CommittedState,
    LeaderClaim,
    PartitionKey,
    ReplicaView,
    batches_in,
)
from millstream.testing.record_batches import BatchSpec, build_batch

KEY = PartitionKey("t", "id", 0)
B0 = BatchView(0, 2, 0, 100, 7, 0, 0)
B1 = BatchView(2, 3, 0, 101, 7, 0, 2)
B2 = BatchView(3, 5, 1, 102, 7, 0, 3)
OTHER_B1 = BatchView(2, 3, 0, 999, 8, 0, 0)


def replica(broker: int, *batches: BatchView, hw: int = 3) -> ReplicaView:
    end = batches[-1].next_offset if batches else 0
    return ReplicaView(broker, KEY, 0, end, hw, hw, 0, batches)


def broker(one: ReplicaView, *, epoch: int | None = None) -> BrokerView:
    claims = {KEY: LeaderClaim(one.broker, KEY, epoch, (1, 2))} if epoch is not None else {}
    return BrokerView(one.broker, 1, 10 + one.broker, replicas={KEY: one}, claims=claims)


def committed(**changes: object) -> CommittedState:
    base = CommittedPartition(KEY, (1, 2, 3), 1, 1, (1, 2), (), -1, 1, 5, 2)
    partition = base._replace(**changes)  # type: ignore[arg-type]
    epochs = {1: 11, 2: 12, 3: 13}
    return CommittedState({KEY: partition}, epochs, dict(epochs), 1, 1)


def view(*brokers: BrokerView, state: CommittedState | None = None) -> ClusterView:
    return ClusterView(0.0, {one.broker: one for one in brokers}, state or committed())


LEADER = broker(replica(1, B0, B1, B2), epoch=1)
FOLLOWER = broker(replica(2, B0, B1))
BEHIND = broker(replica(3, B0, hw=2))
GOOD = view(LEADER, FOLLOWER, BEHIND)


def numbers(one: ClusterView, excuses: Excuses | None = None) -> set[str]:
    return {found.number for found in check_view(one, excuses or Excuses())}


def steps(one: ClusterView, two: ClusterView, excuses: Excuses | None = None) -> set[str]:
    return {found.number for found in check_transition(one, two, excuses or Excuses())}


def test_a_good_cluster_has_nothing_to_complain_about() -> None:
    assert numbers(GOOD) == set()
    assert steps(GOOD, GOOD) == set()


BROKEN: list[tuple[str, Callable[[], ClusterView]]] = [
    ("I-02", lambda: view(LEADER, FOLLOWER, broker(replica(3, B0, OTHER_B1)))),
    ("I-03", lambda: view(broker(replica(1, B1, B0, hw=0)))),
    ("I-05", lambda: view(broker(replica(1, B0, hw=4)))),
    ("I-10", lambda: view(broker(replica(1, B0._replace(leader_epoch=2), B1, hw=0)))),
    (
        "I-12",
        lambda: view(LEADER, broker(replica(3, B0, OTHER_B1, B2, hw=0)), state=committed(isr=(1,))),
    ),
    ("I-13", lambda: view(LEADER, broker(replica(2, B0, hw=2)))),
    ("I-13", lambda: view(LEADER, BrokerView(2, 1, 12))),  # without any log of it
    ("I-14", lambda: view(LEADER, FOLLOWER, state=committed(leader=3))),
    ("I-14", lambda: view(LEADER, FOLLOWER, state=committed(elr=(9,)))),
    ("I-14", lambda: view(LEADER, FOLLOWER, state=committed(lost=(2,)))),
    ("I-15", lambda: view(LEADER, broker(replica(2, B0, B1), epoch=1))),
    ("I-15", lambda: view(broker(replica(1, B0, B1), epoch=2))),
    ("I-18", lambda: view(replace(LEADER, has_lost_session=True))),
    ("I-20", lambda: view(broker(replica(1, B0, B1._replace(base_sequence=0))))),
    (
        "I-21",
        lambda: view(broker(replica(1, B0._replace(producer_epoch=1), B1))),
    ),
]


@pytest.mark.parametrize(("number", "make"), BROKEN)
def test_a_broken_promise_is_found(number: str, make: Callable[[], ClusterView]) -> None:
    assert number in numbers(make())


def test_an_unclean_election_excuses_what_was_committed_but_no_wrong_copy() -> None:
    excuses = Excuses(unclean={KEY})
    own = OTHER_B1._replace(leader_epoch=1)
    split = view(LEADER, broker(replica(3, B0, own)), state=committed(isr=(1,)))
    assert numbers(split, excuses) == set()
    copied = broker(replica(3, B0, OTHER_B1, B2, hw=0))
    assert numbers(view(LEADER, copied), excuses) == {"I-12"}


def test_a_broker_that_nobody_has_dealt_with_yet_may_lack_what_it_lost() -> None:
    short = view(LEADER, broker(replica(2, B0, hw=2)))
    assert numbers(short, Excuses(wounded={2})) == set()
    unsettled = CommittedState(committed().partitions, {1: 11, 2: 99}, {1: 11, 2: 12}, 1, 1)
    assert numbers(view(LEADER, broker(replica(2, B0, hw=2)), state=unsettled)) == set()


def test_a_log_in_a_directory_that_is_away_may_be_gone_but_not_short() -> None:
    away = Excuses(without_directory={2})
    assert numbers(view(LEADER, BrokerView(2, 1, 12)), away) == set()
    assert numbers(view(LEADER, broker(replica(2, B0, hw=2))), away) == {"I-13"}


def test_a_high_watermark_that_falls_within_an_epoch() -> None:
    """I-06"""
    fallen = view(broker(replica(1, B0, B1, B2, hw=2), epoch=1), FOLLOWER)
    assert steps(GOOD, fallen) == {"I-06"}
    assert steps(GOOD, view(broker(replica(1, B0, B1, B2, hw=2), epoch=2), FOLLOWER)) == set()


def test_a_high_watermark_that_moves_while_too_few_are_in_sync() -> None:
    """I-09"""
    state = committed(isr=(1,))
    claims = {KEY: LeaderClaim(1, KEY, 1, (1,))}
    one = replace(LEADER, claims=claims)
    two = replace(broker(replica(1, B0, B1, B2, hw=5)), claims=claims)
    assert steps(view(one, state=state), view(two, state=state)) == {"I-09"}
    newer = replace(two, claims={KEY: LeaderClaim(1, KEY, 1, (1,), partition_epoch=2)})
    assert not steps(view(one, state=state), view(newer, state=state)), "more were in sync between"
    unaware = replace(two, claims={KEY: LeaderClaim(1, KEY, 1, (1, 2))})
    assert steps(view(one, state=state), view(unaware, state=state)) == set()


def test_a_cut_below_the_high_watermark() -> None:
    """I-08"""
    cut = view(LEADER, broker(replica(2, B0, hw=2)))
    assert "I-08" in steps(GOOD, cut)
    assert count_truncations(GOOD, cut) == 1
    assert steps(GOOD, view(LEADER, replace(cut.brokers[2], incarnation=2))) == set()
    recreated = view(LEADER, broker(replica(2, B0, hw=2)._replace(number=1)))
    assert steps(GOOD, recreated) == set(), "the replica was moved away and back"


def test_a_tail_that_was_replaced_counts_as_a_truncation() -> None:
    other = broker(replica(2, B0, OTHER_B1))
    assert count_truncations(GOOD, view(LEADER, other)) == 1
    assert count_truncations(GOOD, GOOD) == 0


@pytest.mark.parametrize(
    ("number", "state"),
    [
        ("I-15", committed(leader=2)),
        ("I-15", committed(leader_epoch=0)),
        ("I-16", replace(committed(), controller_epoch=0)),
        ("I-17", replace(committed(), registered={1: 3})),
    ],
)
def test_epochs_that_do_not_grow(number: str, state: CommittedState) -> None:
    assert steps(GOOD, view(LEADER, FOLLOWER, state=state)) == {number}


def test_what_must_be_so_again_after_the_faults() -> None:
    """I-39, I-40, I-19"""
    state = committed(leader=-1, isr=(), elr=(2,))
    assert [one.number for one in without_leader(state, [1, 2])] == ["I-39"]
    assert without_leader(state, [1, 3]) == []
    last = committed(leader=-1, isr=(), last_known_leader=3)
    assert len(without_leader(last, [3])) == 1
    assert [one.number for one in not_in_sync(committed(), [1, 2, 3])] == ["I-40"]
    assert not_in_sync(committed(), [1, 2]) == []
    assert unaware_leaders(GOOD) == []
    assert len(unaware_leaders(view(broker(replica(1, B0)), FOLLOWER))) == 1
    assert len(unaware_leaders(view(LEADER, broker(replica(2, B0), epoch=0)))) == 1
    assert [one.number for one in differing_replicas(GOOD)] == ["I-19"]
    same = view(LEADER, broker(replica(2, B0, B1, B2)))
    assert differing_replicas(same) == []


def test_batches_are_read_as_they_were_written() -> None:
    spec = BatchSpec(producer_id=5, producer_epoch=1, base_sequence=9, timestamp_ms=1)
    data = bytes(build_batch([(None, b"a"), (None, b"b")], spec))
    found = batches_in(data + data[:-1])
    assert len(found) == 1
    assert found[0][:2] == (0, 2)
    assert found[0][4:] == (5, 1, 9)
