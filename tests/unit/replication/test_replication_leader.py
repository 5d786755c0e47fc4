"""The leader's machine: progress of followers, the high watermark, who is in sync."""

from collections.abc import Iterable

import pytest

from millstream.controller.cluster.errors import NotController
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from millstream.model.invariant import InvariantViolated
from millstream.replication.errors import ProposalRefused
from millstream.replication.isr_port import IsrState
from millstream.replication.leader import (
    PROPOSAL_RETRY_S,
    FollowerFetch,
    LeaderReplicas,
    LeaderState,
    ProposedIsr,
)

ME, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
LAG_S = 30.0
EPOCH = LeaderEpoch(5)


class Led:
    """A machine with a clock, a log's end and a registry of brokers beside it."""

    def __init__(
        self, *, isr: Iterable[int] = (1, 2, 3), min_in_sync: int = 1, epoch_start: int = 0
    ) -> None:
        self.now_s = 0.0
        self.end = Offset(0)
        self.high = Offset(0)
        self.registered = {ME: BrokerEpoch(11), TWO: BrokerEpoch(12), THREE: BrokerEpoch(13)}
        state = LeaderState(EPOCH, 0, (ME, TWO, THREE), tuple(map(BrokerId, isr)), min_in_sync)
        self.machine = LeaderReplicas(
            ME,
            state,
            epoch_start=Offset(epoch_start),
            now_s=0.0,
            epoch_of=self.registered.get,
        )

    def fetch(
        self,
        broker_id: BrokerId,
        offset: int,
        *,
        leader_epoch: int = EPOCH,
        broker_epoch: int | None = None,
    ) -> bool:
        known = self.registered.get(broker_id, BrokerEpoch(0))
        epoch = known if broker_epoch is None else BrokerEpoch(broker_epoch)
        fetched = FollowerFetch(broker_id, epoch, LeaderEpoch(leader_epoch), Offset(offset))
        return self.machine.note_fetch(fetched, leader_end=self.end, now_s=self.now_s)

    def mark(self) -> int:
        self.high = max(self.high, self.machine.high_watermark(self.end))
        return self.high

    def wanted(self) -> ProposedIsr | None:
        return self.machine.next_proposal(
            high_watermark=self.high, own_end=self.end, now_s=self.now_s, lag_s=LAG_S
        )

    def ask(self) -> ProposedIsr:
        wanted = self.wanted()
        assert wanted is not None
        self.machine.note_proposed(wanted)
        return wanted

    def commit(self, proposed: ProposedIsr) -> None:
        isr = tuple(one.broker_id for one in proposed.isr)
        told = IsrState(ME, EPOCH, isr, proposed.partition_epoch + 1)
        assert not self.machine.answered(proposed, told, self.now_s)
        assert self.wanted() is None, "the metadata has the say"
        state = self.machine.state._replace(isr=isr, partition_epoch=told.partition_epoch)
        start = self.machine.epoch_start
        self.machine.configure(state, epoch_start=start, now_s=self.now_s)


def ids(proposed: ProposedIsr | None) -> list[int]:
    assert proposed is not None
    return [one.broker_id for one in proposed.isr]


def test_the_high_watermark_is_the_smallest_end_of_those_in_sync() -> None:
    led = Led(isr=(1, 2))
    led.end = Offset(10)
    assert led.mark() == 0, "2 has not been heard of in this epoch"
    led.fetch(TWO, 4)
    led.fetch(THREE, 2)
    assert led.mark() == 4
    led.fetch(TWO, 10)
    assert led.mark() == 10


def test_a_fetch_of_another_leader_epoch_shows_nothing() -> None:
    """KIP-320 rule 3, I-09."""
    led = Led(isr=(1, 2))
    led.end = Offset(10)
    assert not led.fetch(TWO, 10, leader_epoch=4)
    assert not led.fetch(TWO, 10, leader_epoch=6)
    assert led.mark() == 0


def test_a_new_leader_epoch_begins_with_nothing_known() -> None:
    led = Led(isr=(1, 2))
    led.end = Offset(10)
    led.fetch(TWO, 4)
    state = led.machine.state._replace(leader_epoch=LeaderEpoch(6), partition_epoch=1)
    led.machine.configure(state, epoch_start=Offset(10), now_s=0.0)
    assert led.mark() == 0
    led.fetch(TWO, 10, leader_epoch=6)
    assert led.mark() == 10


def test_nothing_counts_while_too_few_are_in_sync() -> None:
    """I-09."""
    led = Led(isr=(1,), min_in_sync=2)
    led.end = Offset(10)
    led.fetch(TWO, 10)
    assert led.mark() == 0
    asked = led.ask()
    assert led.mark() == 0, "asked for is not committed"
    led.commit(asked)
    assert led.mark() == 10


def test_a_follower_that_is_behind_for_too_long_is_taken_out_and_only_then() -> None:
    led = Led()
    led.end = Offset(10)
    led.now_s = 20.0
    led.fetch(TWO, 10)
    led.fetch(THREE, 5)
    led.now_s = LAG_S
    assert led.wanted() is None
    led.now_s += 1
    assert ids(led.wanted()) == [1, 2]


def test_who_asks_for_what_was_the_end_the_last_time_has_caught_up_with_that() -> None:
    """Under constant load no fetch ever finds the follower at the end."""
    led = Led()
    for second in range(100):
        led.now_s = float(second)
        led.end = Offset(10 * (second + 1))
        led.fetch(TWO, 10 * second)
        led.fetch(THREE, 10 * second)
    led.now_s += LAG_S / 2
    assert led.wanted() is None


def test_who_has_everything_is_in_sync_however_long_it_is_silent() -> None:
    led = Led()
    led.end = Offset(10)
    led.fetch(TWO, 10)
    led.fetch(THREE, 10)
    led.now_s = 1000.0
    assert led.wanted() is None
    led.machine.note_caught_up(led.end, led.now_s)
    led.end = Offset(11)
    led.now_s += 1
    assert led.wanted() is None, "an append does not make it late at once"


def test_a_follower_joins_when_it_has_what_counts_and_is_in_the_leaders_epoch() -> None:
    """KIP-320 rule 4."""
    led = Led(isr=(1,), epoch_start=8)
    led.end, led.high = Offset(10), Offset(5)
    led.fetch(TWO, 4)
    assert led.wanted() is None
    led.fetch(TWO, 7)
    assert led.wanted() is None, "at the high watermark, and below the start of the epoch"
    led.fetch(TWO, 10)
    assert ids(led.wanted()) == [1, 2]


def test_a_follower_that_is_late_is_not_asked_in() -> None:
    """It has what counts, and would be put out at once, and asked in again, for ever."""
    led = Led(isr=(1,))
    led.end, led.high = Offset(10), Offset(5)
    led.fetch(TWO, 5)
    assert led.wanted() is None, "it never had all that the leader had"
    led.end = Offset(20)
    led.fetch(TWO, 10)
    assert ids(led.wanted()) == [1, 2], "it had all when it last asked"
    led.now_s += 2 * LAG_S
    assert led.wanted() is None


def test_whom_the_leader_asks_for_counts_at_once() -> None:
    """I-13: the controller may have committed it, and may elect it."""
    led = Led(isr=(1,))
    led.end = Offset(5)
    led.mark()
    led.fetch(TWO, 5)
    asked = led.ask()
    led.end = Offset(9)
    assert led.mark() == 5
    led.commit(asked)
    assert led.mark() == 5
    led.fetch(TWO, 9)
    assert led.mark() == 9


def test_a_change_counts_when_the_metadata_has_it() -> None:
    """A setting that was raised before it comes first then; and who was named counts meanwhile."""
    led = Led(isr=(1, 2), min_in_sync=1)
    led.fetch(TWO, 0)
    led.end = Offset(10)
    led.now_s = 2 * LAG_S
    asked = led.ask()
    assert ids(asked) == [1]
    led.machine.answered(asked, IsrState(ME, EPOCH, (ME,), 1), led.now_s)
    assert led.mark() == 0, "2 is in sync for all that the metadata says"
    state = led.machine.state._replace(isr=(ME,), partition_epoch=1, effective_min_isr=2)
    led.machine.configure(state, epoch_start=Offset(0), now_s=led.now_s)
    assert led.mark() == 0, "I-09"


def test_one_change_at_a_time() -> None:
    led = Led(isr=(1,))
    led.fetch(TWO, 0)
    asked = led.ask()
    led.fetch(THREE, 0)
    assert led.wanted() is None
    with pytest.raises(InvariantViolated, match="I-13"):
        led.machine.note_proposed(asked)
    led.commit(asked)
    assert ids(led.wanted()) == [1, 2, 3]


def test_after_an_error_the_change_may_have_been_made_until_a_newer_state_is_known() -> None:
    led = Led(isr=(1,))
    led.fetch(TWO, 0)
    asked = led.ask()
    led.machine.answered(asked, NotController(), led.now_s)
    led.end = Offset(5)
    assert led.mark() == 0
    assert led.wanted() is None, "not at once again"
    led.now_s += PROPOSAL_RETRY_S
    again = led.ask()
    same = IsrState(ME, EPOCH, (ME,), 0)
    led.machine.answered(again, same, led.now_s)
    assert led.mark() == 0, "the first may still be on its way"
    newer = led.machine.state._replace(partition_epoch=1)
    led.machine.configure(newer, epoch_start=Offset(0), now_s=led.now_s)
    assert led.mark() == 5


def test_what_was_surely_refused_counts_no_more() -> None:
    led = Led(isr=(1,))
    led.fetch(TWO, 0)
    asked = led.ask()
    assert led.machine.answered(asked, ProposalRefused("restarted"), led.now_s)
    led.end = Offset(5)
    assert led.mark() == 5


def test_an_answer_that_comes_after_the_metadata_is_old() -> None:
    led = Led()
    led.now_s = LAG_S + 1
    led.end = Offset(1)
    led.fetch(TWO, 1)
    asked = led.ask()
    newer = led.machine.state._replace(partition_epoch=3, isr=(ME, THREE))
    led.machine.configure(newer, epoch_start=Offset(0), now_s=led.now_s)
    assert not led.machine.is_proposing
    assert not led.machine.answered(asked, IsrState(ME, EPOCH, (ME, TWO), 1), led.now_s)
    assert led.machine.state.isr == (ME, THREE)


def test_metadata_that_comes_late_changes_only_what_the_topic_asks_for() -> None:
    led = Led()
    newer = led.machine.state._replace(partition_epoch=3, isr=(ME, TWO))
    led.machine.configure(newer, epoch_start=Offset(0), now_s=0.0)
    older = newer._replace(partition_epoch=2, isr=(ME,), effective_min_isr=2)
    led.machine.configure(older, epoch_start=Offset(0), now_s=0.0)
    assert led.machine.state == newer._replace(effective_min_isr=2)


def test_a_restarted_follower_begins_anew_and_its_last_incarnation_is_not_heard() -> None:
    """KIP-903."""
    led = Led(isr=(1, 2))
    led.end = Offset(10)
    led.fetch(TWO, 6)
    led.registered[TWO] = BrokerEpoch(22)
    assert led.machine.is_stale(TWO, BrokerEpoch(12))
    assert led.fetch(TWO, 3)
    assert not led.fetch(TWO, 10, broker_epoch=12)
    progress = led.machine.progress_of(TWO)
    assert progress is not None
    assert (progress.end, progress.broker_epoch) == (3, 22)


def test_a_proposal_names_the_incarnation_that_has_fetched() -> None:
    led = Led(isr=(1,))
    led.fetch(TWO, 0)
    led.fetch(THREE, 0, broker_epoch=12)
    wanted = led.wanted()
    assert wanted is not None
    assert [tuple(one) for one in wanted.isr] == [(1, 11), (2, 12)], "3 was restarted since"
    del led.registered[TWO]
    assert led.wanted() is None, "and 2 is gone"


def test_a_member_that_was_not_heard_in_this_epoch_is_named_as_it_is_registered() -> None:
    led = Led(isr=(1, 2))
    led.fetch(THREE, 0)
    wanted = led.wanted()
    assert wanted is not None
    assert [tuple(one) for one in wanted.isr] == [(1, 11), (2, 12), (3, 13)]


def test_a_replica_that_is_taken_away_is_not_waited_for() -> None:
    led = Led()
    led.end = Offset(10)
    led.fetch(TWO, 10)
    gone = led.machine.state._replace(partition_epoch=1, replicas=(ME, TWO), isr=(ME, TWO))
    led.machine.configure(gone, epoch_start=Offset(0), now_s=0.0)
    assert led.mark() == 10
    assert led.machine.progress_of(THREE) is None


def test_the_high_watermark_waits_for_who_is_always_a_little_behind() -> None:
    """Alone in sync the leader's end is the high watermark, which no follower would ever reach."""
    led = Led(isr=(1,))
    for second in range(5):
        led.now_s = float(second)
        led.end = Offset(10 * (second + 1))
        led.fetch(TWO, 10 * second)
        led.machine.update_catching_up(own_end=led.end, now_s=led.now_s, lag_s=LAG_S)
        led.mark()
    assert led.high < led.end
    assert ids(led.wanted()) == [1, 2]
