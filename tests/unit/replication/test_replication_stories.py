"""Stories of two and three brokers on a simulated network: what replication promises, by name."""

import asyncio
from dataclasses import replace

import pytest

from kits.replication.replica_kit import LAG_S, Cluster, offsets
from kits.storage.log_stories import batch_of, of_producer
from millstream.model.errors import OutOfOrderSequence, UnknownPartition
from millstream.model.ids import Offset
from millstream.replication.errors import (
    NotEnoughReplicas,
    NotEnoughReplicasAfterAppend,
    NotLeader,
    OffsetNotAvailable,
)
from millstream.runtime.scheduler import run_blocking
from millstream.storage.ports import AppendOutcome
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.wire.errors import ErrorCode


def test_a_follower_catches_up() -> None:
    async def story(cluster: Cluster) -> None:
        outcomes = cluster[1].append(*(b"%d" % number for number in range(50)))
        await cluster.until(lambda: len(outcomes) == 50, "acks")
        assert offsets(outcomes) == list(range(50))
        await cluster.until_equal()
        assert cluster[2].log().latest_epoch == 1

    Cluster().play(story)


def test_an_ack_of_all_waits_for_everybody_in_sync_and_is_released() -> None:
    """I-01, I-09. One follower cannot be reached: nothing counts, until it has left the ISR."""

    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first, "the first ack")
        cluster.world.network.partition("broker-1", "broker-3")
        second, alone = cluster[1].append(b"b"), cluster[1].append(b"c", acks=1)
        assert offsets(alone) == [2], "acks=1 waits for the leader only"
        await cluster.pass_time(LAG_S / 2)
        assert not second
        assert cluster[1].leader().high_watermark == 1
        await cluster.until(lambda: second, "the ack", within_s=3 * LAG_S)
        assert offsets(second) == [1]
        assert cluster.partition().isr == (1, 2)
        cluster.world.network.heal("broker-1", "broker-3")
        await cluster.until(lambda: cluster.partition().isr == (1, 2, 3), "growth")
        await cluster.until_equal()

    Cluster().play(story)


def test_too_few_in_sync_refuse_before_and_tell_after() -> None:
    """min.insync.replicas 2 of 2: the follower leaves while a record waits for it."""

    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first)
        cluster.world.network.partition("broker-1", "broker-2")
        waiting = cluster[1].append(b"b")
        await cluster.until(lambda: waiting, "an answer", within_s=3 * LAG_S)
        assert isinstance(waiting[0].error, NotEnoughReplicasAfterAppend)
        refused = cluster[1].append(b"c")
        assert type(refused[0].error) is NotEnoughReplicas
        assert cluster[1].leader().high_watermark == 1, "I-09: nothing counts meanwhile"
        assert cluster[1].log().log_end == 2
        cluster.world.network.heal("broker-1", "broker-2")
        await cluster.until(lambda: cluster[1].leader().high_watermark == 2, "what waited counts")
        assert cluster[1].values() == [b"a", b"b"]

    Cluster(brokers=2, min_in_sync=2).play(story)


def test_kip_101_a_follower_that_becomes_leader_keeps_what_counted() -> None:
    """The follower has the record and does not know yet that it counts; it is restarted, and the
    leader dies before they meet again.

    Cut to its high watermark, as before KIP-101, it would lose the record.
    """

    async def story(cluster: Cluster) -> None:
        network = cluster.world.network
        outcomes = cluster[1].append(b"a")
        await cluster.until(lambda: cluster[2].log().log_end == 1)
        network.cut("broker-1", "broker-2")  # what it asks for is heard, what is answered is not
        await cluster.until(lambda: outcomes, "the ack")
        assert cluster[2].log().high_watermark == 0
        await cluster[2].stop()
        await cluster[2].start()
        await cluster.pass_time(1.0)
        await cluster[1].crash()
        cluster.elect(2, isr=[2])
        assert cluster[2].values() == [b"a"]
        network.heal_all()
        await cluster[1].start()
        await cluster.until(lambda: len(cluster.partition().isr) == 2, "both are in sync")
        await cluster.until_equal()
        assert cluster[1].values() == [b"a"]

    Cluster(brokers=2).play(story)


def test_a_leader_fails_with_an_unreplicated_tail() -> None:
    """KIP-101's divergence: the old leader's tail goes, though its offsets are taken again."""

    async def story(cluster: Cluster) -> None:
        outcomes = cluster[1].append(b"a")
        await cluster.until(lambda: outcomes)
        await cluster.until_equal()
        cluster.world.network.partition("broker-1", "broker-2")
        cluster[1].append(b"lost-1", b"lost-2", b"lost-3", acks=1)
        await cluster[1].crash()
        cluster.elect(2, isr=[2])
        again = cluster[2].append(b"b", b"c")
        await cluster.until(lambda: len(again) == 2)
        cluster.world.network.heal("broker-1", "broker-2")
        await cluster[1].start()
        await cluster.until_equal()
        assert cluster[1].values() == [b"a", b"b", b"c"]
        assert cluster[1].partitions.counts.truncations == 1
        assert cluster[1].partitions.counts.unclean_truncations == 0

    Cluster(brokers=2).play(story)


def test_kip_279_epochs_are_walked_back_until_they_match() -> None:
    """Two leaders in quick succession, each with records that nobody else has.

    1 leads epochs 1 and 3, 2 leads epoch 2; then 2 leads epoch 4. Asked for the end of epoch 3,
    which it never had, it answers with epoch 2: 1 has no such epoch and goes back to its epoch 1.
    """

    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first)
        await cluster.until_equal()
        cluster.world.network.partition("broker-1", "broker-2")
        cluster.elect(2, isr=[2])
        cluster[2].append(b"two-1", b"two-2", b"two-3", acks=1)
        cluster.elect(1, isr=[1], tell=[cluster[1]])
        cluster[1].append(b"three-1", b"three-2", acks=1)
        cluster.elect(2, isr=[2])
        cluster.world.network.heal("broker-1", "broker-2")
        await cluster.until_equal()
        assert cluster[1].values() == [b"a", b"two-1", b"two-2", b"two-3"]
        epochs = [tuple(one) for one in cluster[1].log().epochs.entries()]
        assert epochs == [(1, 0), (2, 1)]

    Cluster(brokers=2).play(story)


def test_kip_320_a_fetch_of_an_older_epoch_moves_nothing() -> None:
    """The leader is in a new epoch and the follower has not heard of it: rules 2 and 3."""

    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first)
        await cluster.until_equal()
        cluster.elect(1, isr=[1, 2], tell=[cluster[1]])
        second = cluster[1].append(b"b")
        await cluster.pass_time(2.0)
        assert not second
        assert cluster[1].leader().high_watermark == 1
        assert cluster[2].log().log_end == 1, "nothing is copied before the epochs agree (I-12)"
        cluster.tell([cluster[2]])
        await cluster.until(lambda: second, "the ack")
        await cluster.until_equal()

    Cluster(brokers=2).play(story)


def test_kip_320_a_follower_of_a_newer_epoch_waits_for_the_leader_to_hear_of_it() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.elect(1, isr=[1, 2], tell=[cluster[2]])
        outcomes = cluster[1].append(b"a")
        await cluster.pass_time(1.0)
        assert not outcomes
        assert cluster[2].log().log_end == 0
        cluster.tell([cluster[1]])
        await cluster.until(lambda: outcomes)
        await cluster.until_equal()

    Cluster(brokers=2).play(story)


def test_kip_320_a_new_leader_reconciles_and_a_follower_joins_only_in_its_epoch() -> None:
    """Rule 4: at the high watermark, and below the start of the leader's epoch, is not in sync."""

    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first)
        await cluster.until_equal()
        cluster.world.network.partition("broker-2", "broker-1")
        cluster.world.network.partition("broker-2", "broker-3")
        late = cluster[1].append(b"b", b"c")
        await cluster.until(lambda: cluster[3].log().log_end == 3, "3 has it, 2 does not")
        assert not late
        await cluster[1].crash()
        cluster.elect(3, isr=[3, 2])
        assert cluster[3].leader().high_watermark < 3
        await cluster.pass_time(1.0)
        assert cluster[3].leader().high_watermark == 1, "2 is in sync and has not been heard of"
        cluster.world.network.heal_all()
        await cluster.until(lambda: cluster[3].leader().high_watermark == 3)
        assert cluster[2].values() == [b"a", b"b", b"c"]

    Cluster().play(story)


def test_an_unclean_election_cuts_what_counted_and_says_so() -> None:
    """I-08: below the high watermark only then, and it is told."""

    async def story(cluster: Cluster) -> None:
        told: list[tuple[object, ...]] = []
        cluster[1].partitions.cluster.on_unclean = lambda *what: told.append(what)
        cluster.elect(1, isr=[1])
        cluster.world.network.partition("broker-1", "broker-2")
        outcomes = cluster[1].append(b"a", b"b")
        await cluster.until(lambda: len(outcomes) == 2)
        cluster.elect(2, isr=[2])
        cluster[2].append(b"c")
        cluster.world.network.heal("broker-1", "broker-2")
        await cluster.until_equal()
        assert cluster[1].values() == [b"c"]
        assert [one[1:] for one in told] == [(Offset(2), Offset(0))]
        assert cluster[1].partitions.counts.unclean_truncations == 1

    Cluster(brokers=2).play(story)


def test_a_follower_below_the_leaders_start_begins_there() -> None:
    """OFFSET_OUT_OF_RANGE: what it misses was deleted meanwhile."""

    async def story(cluster: Cluster) -> None:
        await cluster[2].stop()
        cluster.elect(1, isr=[1])
        outcomes = cluster[1].append(*(b"%d" % number for number in range(10)))
        await cluster.until(lambda: len(outcomes) == 10)
        cluster[1].log().advance_log_start(Offset(8))
        await cluster[2].start()
        await cluster.until_equal()
        assert cluster[2].log().log_start == 8
        assert cluster[2].values() == [b"8", b"9"]
        more = cluster[1].append(b"10")
        await cluster.until(lambda: more)
        cluster[1].log().advance_log_start(Offset(10))
        cluster[1].append(b"11")
        await cluster.until(lambda: cluster[2].log().log_start == 10, "the start is followed")

    Cluster(brokers=2).play(story)


def test_a_broker_that_is_cut_off_from_the_coordination_serves_on_and_proposes_nothing() -> None:
    """I-18."""

    async def story(cluster: Cluster) -> None:
        cluster[1].is_suspended = True
        cluster.world.network.partition("broker-1", "broker-2")
        waiting = cluster[1].append(b"a")
        await cluster.pass_time(5 * LAG_S)
        assert not waiting
        assert not cluster.decider.seen
        cluster.world.network.heal("broker-1", "broker-2")
        await cluster.until(lambda: waiting, "acks go on when everybody has fetched")
        assert offsets(waiting) == [0]

    Cluster(brokers=2).play(story)


@pytest.mark.parametrize("acks", [-1, 1])
def test_a_leader_that_is_cut_off_does_not_call_a_sequence_wrong(acks: int) -> None:
    """I-18, I-20: what is missing here may be with another leader. Else it is said."""

    async def story(cluster: Cluster) -> None:
        outcomes: list[AppendOutcome] = []

        def append(sequence: int) -> None:
            batch = batch_of(b"%d" % sequence, spec=of_producer(7, sequence))
            cluster[1].leader().append(batch, acks=acks, done=outcomes.append)
            cluster[1].partitions.wake_readers()

        append(0)
        await cluster.until(lambda: len(outcomes) == 1, "the ack")
        append(2)
        assert isinstance(outcomes[1].error, OutOfOrderSequence)
        cluster[1].is_suspended = True
        append(2)
        assert isinstance(outcomes[2].error, NotLeader)
        append(1)
        await cluster.until(lambda: len(outcomes) == 4, "it serves on")
        append(1)
        await cluster.until(lambda: len(outcomes) == 5, "and knows what it has")
        assert offsets([outcomes[0], *outcomes[3:]]) == [0, 1, 1]
        assert outcomes[4].is_duplicate
        cluster[1].is_suspended = False
        append(3)
        assert isinstance(outcomes[5].error, OutOfOrderSequence)

    Cluster(brokers=2).play(story)


def test_a_lost_session_closes_all_leaderships_at_once() -> None:
    """I-18. Who waits is told, and nothing is led again by what was known before."""

    async def story(cluster: Cluster) -> None:
        cluster.world.network.partition("broker-1", "broker-2")
        waiting = cluster[1].append(b"a")
        cluster[1].partitions.close_all_leaderships()
        assert isinstance(waiting[0].error, NotLeader)
        with pytest.raises(NotLeader):
            cluster[1].leader()
        assert cluster[1].table.find(b"t", 0) is None
        cluster[1].partitions.attach(cluster.image)
        cluster.tell([cluster[1]])
        with pytest.raises(NotLeader):
            cluster[1].leader()
        cluster.elect(1, isr=[1, 2])
        assert cluster[1].leader().leader_epoch == 2

    Cluster(brokers=2).play(story)


def test_a_follower_acknowledges_only_what_it_has_flushed() -> None:
    """I-01 with flush.messages=1: to ask for more says that the rest is durable."""

    async def story(cluster: Cluster) -> None:
        outcomes = cluster[1].append(b"a", b"b")
        await cluster.until(lambda: len(outcomes) == 2)
        assert cluster[2].log().recovery_point == 2
        await cluster.until_equal()
        after_s = cluster.world.loop.time()
        more = cluster[1].append(b"c")
        await cluster.until(lambda: more)
        assert cluster.world.loop.time() - after_s < 0.1, "no request is held meanwhile"

    Cluster(brokers=2, config=replace(SMALL_SEGMENTS, flush_messages=1)).play(story)


def test_many_partitions_share_a_session_and_one_in_trouble_does_not_disturb_the_others() -> None:
    async def story(cluster: Cluster) -> None:
        for index in range(0, 20, 2):
            cluster[1].append(b"%d" % index, index=index)
        cluster.elect(1, isr=[1, 2], index=4, tell=[cluster[2]])  # the leader has not heard of it
        seconds = [cluster[1].append(b"x", index=index) for index in range(0, 20, 2)]
        await cluster.until(lambda: sum(map(len, seconds)) == 9)
        assert not seconds[2]
        sessions = cluster[1].services.fetch_sessions
        assert len(sessions) == 1
        asked = cluster[1].server.connection_count
        cluster.tell([cluster[1]], index=4)
        await cluster.until(lambda: seconds[2])
        assert len(sessions) == 1
        assert cluster[1].server.connection_count == asked

    Cluster(brokers=2, partitions=20).play(story)


def test_a_leader_that_forgets_the_session_is_asked_for_everything_again() -> None:
    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first)
        sessions = cluster[1].services.fetch_sessions
        for session in list(sessions._sessions.values()):
            sessions._remove(session)
        second = cluster[1].append(b"b")
        await cluster.until(lambda: second)

    Cluster(brokers=2).play(story)


def test_a_partition_that_moves_away_is_deleted_and_one_that_comes_is_fetched() -> None:
    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first)
        now = cluster.partition()
        fewer = now._replace(replicas=now.replicas[:2], isr=now.isr[:2], partition_epoch=1)
        cluster.put(0, fewer)
        assert not cluster[3].partitions.followers
        with pytest.raises(UnknownPartition):
            cluster[3].log()
        with pytest.raises(NotLeader):
            cluster[3].leader()
        second = cluster[1].append(b"b")
        await cluster.until(lambda: second)
        cluster.put(0, fewer._replace(replicas=now.replicas, partition_epoch=2))
        await cluster.until(lambda: len(cluster.partition().isr) == 3, "3 is in sync again")
        assert cluster[3].values() == [b"a", b"b"]

    Cluster().play(story)


def test_a_restart_with_followers_begins_at_the_stored_high_watermark() -> None:
    """What is above it may not have counted: the followers tell."""

    async def story(cluster: Cluster) -> None:
        first = cluster[1].append(b"a")
        await cluster.until(lambda: first)
        run_blocking(cluster[1].partitions.store_high_watermarks_steps())
        cluster.world.network.partition("broker-1", "broker-2")
        cluster[1].append(b"b", acks=1)
        await cluster[1].crash()
        await cluster[1].start()
        assert cluster[1].leader().high_watermark == 1
        with pytest.raises(OffsetNotAvailable):
            cluster[1].leader().check_high_watermark_known()
        cluster.world.network.heal_all()
        await cluster.until(lambda: cluster[1].leader().high_watermark == 2)
        cluster[1].leader().check_high_watermark_known()

    Cluster(brokers=2).play(story)


def test_kip_392_a_consumer_reads_from_a_follower_in_its_rack() -> None:
    """What counts, and no more (I-07); one that is merely behind is not out of range."""

    async def story(cluster: Cluster) -> None:
        outcomes = cluster[1].append(b"a", b"b")
        await cluster.until(lambda: len(outcomes) == 2)
        await cluster.until_equal()
        cluster[1].partitions.cluster.is_rack_aware = lambda: True
        sent = await cluster.consume(1, Offset(0), rack="rack-3")
        assert (sent.preferred_read_replica, bytes(sent.records or b"")) == (3, b"")
        for rack in ("rack-1", "nowhere", ""):
            kept = await cluster.consume(1, Offset(0), rack=rack)
            assert kept.preferred_read_replica == -1
            assert kept.records
        there = await cluster.consume(3, Offset(1), rack="rack-3")
        assert (there.error_code, there.high_watermark) == (0, 2)
        assert there.records
        behind = await cluster.consume(3, Offset(5), rack="rack-3")
        assert behind.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        no_rack = await cluster.consume(3, Offset(1), rack="")
        assert no_rack.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert no_rack.current_leader.leader_id == 1

    Cluster().play(story)


def test_kip_392_a_reader_at_a_follower_waits_for_what_counts_there() -> None:
    async def story(cluster: Cluster) -> None:
        waiting = asyncio.get_running_loop().create_task(
            cluster.consume(3, Offset(0), rack="rack-3", wait_ms=5000)
        )
        await cluster.pass_time(0.1)
        assert not waiting.done()
        cluster[1].append(b"a")
        found = await waiting
        assert found.records
        assert found.high_watermark == 1

    Cluster().play(story)
