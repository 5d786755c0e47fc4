"""Throttled replication (KIP-73): replicas that catch up are slowed, those in sync are not."""

import pytest

from kits.replication.replica_kit import Cluster
from millstream.model.ids import BrokerId
from millstream.replication.throttle import (
    CREDIT_S,
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
    RATE_CHECK_INTERVAL_S,
    UNLIMITED,
    ReplicaThrottle,
    listed_partitions,
)
from millstream.runtime.randomness import SeededRandomness

RATE = 20_000.0
ME = BrokerId(3)
VALUE = b"v" * 900
LATE = 200
"""Records that the follower lacks."""


# -- the machine


@pytest.mark.parametrize("seed", range(1, 21))
def test_no_more_than_the_rate_is_copied_over_any_time(seed: int) -> None:
    """Replay of one seed:

    pytest tests/unit/replication/test_replication_throttle.py -k 'over_any_time and [SEED]'
    """
    random = SeededRandomness(seed)
    throttle, now_s, copied = ReplicaThrottle(lambda: RATE), 100.0, 0
    largest = 50_000
    began_s = now_s
    throttle.is_exceeded(now_s)
    for _ in range(300):
        if throttle.is_exceeded(now_s):
            wait_s = throttle.wait_s(now_s)
            assert 0 < wait_s <= RATE_CHECK_INTERVAL_S
            now_s += wait_s * random.between(0.5, 1.5)
        else:
            assert throttle.wait_s(now_s) == 0
            size = random.integer(1, largest)
            throttle.record(size, now_s)
            copied += size
    passed_s = now_s - began_s
    assert copied <= RATE * (passed_s + CREDIT_S) + largest
    assert copied >= RATE * passed_s * 0.8, "it is reached, too"


def test_an_idle_time_gives_credit_for_a_second_and_not_more() -> None:
    throttle = ReplicaThrottle(lambda: RATE)
    throttle.record(1, 0.0)
    throttle.record(int(RATE), 1_000.0)
    assert not throttle.is_exceeded(1_000.0)
    throttle.record(1, 1_000.0)
    assert throttle.is_exceeded(1_000.0)


def test_a_new_rate_counts_at_once() -> None:
    rate = 1.0
    throttle = ReplicaThrottle(lambda: rate)
    throttle.record(10_000_000, 5.0)
    assert throttle.wait_s(5.0) == RATE_CHECK_INTERVAL_S
    rate = UNLIMITED
    assert not throttle.is_exceeded(5.0)
    rate = 10.0
    assert not throttle.is_exceeded(5.0), "what was copied without a limit does not count"


def test_a_rate_of_nothing_lets_one_answer_through_and_no_more() -> None:
    throttle = ReplicaThrottle(lambda: 0.0)
    assert not throttle.is_exceeded(1.0)
    throttle.record(5, 1.0)
    assert throttle.is_exceeded(1e9)
    assert throttle.wait_s(1e9) == RATE_CHECK_INTERVAL_S


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, []),
        ("", []),
        ("*", [0, 1, 2, 3]),
        (" * ", [0, 1, 2, 3]),
        ("0:3,1:2, 2:3", [0, 2]),
        ("nonsense,3:3,4", [3]),
    ],
)
def test_what_a_setting_names(text: str | None, found: list[int]) -> None:
    listed = listed_partitions(text, ME)
    assert [one for one in range(4) if one in listed] == found


# -- brokers


async def behind(cluster: Cluster) -> int:
    """Broker 3 was away while the others took records; the bytes that it lacks."""
    await cluster[3].stop()
    cluster.elect(1, isr=[1, 2])
    outcomes = cluster[1].append(*[VALUE] * LATE, acks=1)
    assert len(outcomes) == LATE
    await cluster.until_equal(1, 2)
    await cluster[3].start()
    return LATE * len(VALUE)


async def seconds_to_catch_up(cluster: Cluster) -> float:
    started_s = cluster.world.loop.time()
    await cluster.until(
        lambda: cluster[3].log().log_end == cluster[1].log().log_end, "caught up", within_s=600
    )
    return cluster.world.loop.time() - started_s


@pytest.mark.parametrize("side", [LEADER_REPLICAS, FOLLOWER_REPLICAS])
@pytest.mark.parametrize("named", ["*", "0:{broker}"])
def test_a_replica_that_catches_up_takes_its_bytes_over_the_rate(side: str, named: str) -> None:
    broker = 1 if side == LEADER_REPLICAS else 3

    async def story(cluster: Cluster) -> None:
        cluster.configure({side: named.format(broker=broker)})
        size = await behind(cluster)
        expected_s = size / RATE
        taken_s = await seconds_to_catch_up(cluster)
        assert 0.7 * expected_s < taken_s < 1.4 * expected_s
        await cluster.until(lambda: cluster.partition().isr == (1, 2, 3), "it is in sync")

    cluster = Cluster()
    if side == LEADER_REPLICAS:
        cluster.leader_rate = RATE
    else:
        cluster.follower_rate = RATE
    cluster.play(story)


def test_without_its_name_in_the_topic_nobody_is_slowed() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.configure({LEADER_REPLICAS: "0:2,1:1", FOLLOWER_REPLICAS: "0:1,1:3"})
        await behind(cluster)
        assert await seconds_to_catch_up(cluster) < 2

    cluster = Cluster()
    cluster.leader_rate = cluster.follower_rate = RATE
    cluster.play(story)


def test_replicas_in_sync_are_not_slowed_meanwhile() -> None:
    """Their traffic neither waits nor counts: acks=all is as fast as without a throttle."""

    async def story(cluster: Cluster) -> None:
        cluster.configure({LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "*"})
        size = await behind(cluster)
        started_s, slowest_s, written = cluster.world.loop.time(), 0.0, 0
        while cluster[3].log().log_end < LATE:
            asked_s = cluster.world.loop.time()
            outcomes = cluster[1].append(b"x" * 2_000)
            await cluster.until(lambda told=outcomes: told, "the ack")  # type: ignore[misc]
            slowest_s = max(slowest_s, cluster.world.loop.time() - asked_s)
            written += 2_000
            await cluster.pass_time(0.05)
        taken_s = cluster.world.loop.time() - started_s
        assert slowest_s < 0.1
        assert taken_s > 0.7 * size / RATE
        assert written > size, "more than the rate was copied to the one in sync"

    cluster = Cluster()
    cluster.leader_rate = cluster.follower_rate = RATE
    cluster.play(story)


def test_a_throttle_that_is_taken_away_lets_the_rest_through_at_once() -> None:
    """kafka-reassign-partitions.sh --verify removes it."""

    async def story(cluster: Cluster) -> None:
        cluster.configure({LEADER_REPLICAS: "*", FOLLOWER_REPLICAS: "*"})
        await behind(cluster)
        await cluster.pass_time(30)
        assert cluster[3].log().log_end < LATE
        cluster.configure({})
        assert await seconds_to_catch_up(cluster) < 3

    cluster = Cluster()
    cluster.leader_rate = cluster.follower_rate = 100.0
    cluster.play(story)


def test_other_partitions_of_the_same_leader_go_on_while_one_is_held_back() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.configure({FOLLOWER_REPLICAS: "0:3", LEADER_REPLICAS: "0:1"})
        await behind(cluster)
        for _ in range(20):
            outcomes = cluster[1].append(b"y", index=3)
            await cluster.until(lambda told=outcomes: told, "an ack", within_s=0.7)  # type: ignore[misc]
        assert cluster[3].log().log_end < LATE

    cluster = Cluster(partitions=4)
    cluster.leader_rate = cluster.follower_rate = 100.0
    cluster.play(story)
