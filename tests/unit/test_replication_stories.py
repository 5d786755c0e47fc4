"""Stories of two and three brokers on a simulated network: what replication promises, by name."""

from millstream.model.ids import Offset
from millstream.replication.errors import NotEnoughReplicas, NotEnoughReplicasAfterAppend
from replica_kit import LAG_S, Cluster, offsets


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
    """The follower has the record and does not know yet that it counts; then the leader dies.

    Cut to its high watermark, as before KIP-101, it would lose the record.
    """

    async def story(cluster: Cluster) -> None:
        outcomes = cluster[1].append(b"a")
        await cluster.until(lambda: outcomes)
        await cluster[2].stop()
        await cluster[2].start()
        await cluster.until(lambda: cluster[2].log().log_end == 1)
        await cluster[1].crash()
        cluster.elect(2, isr=[2])
        assert cluster[2].values() == [b"a"]
        await cluster[1].start()
        await cluster.until(lambda: cluster.partition().isr == (1, 2), "both are in sync")
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
