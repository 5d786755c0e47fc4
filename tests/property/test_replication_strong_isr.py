"""Whatever happens between a leader, its followers and a controller whose answers get lost: all
below the high watermark is on every replica that is truly in sync (I-13), and it never goes down.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millstream.controller.cluster.errors import NotController
from millstream.model.ids import BrokerEpoch, BrokerId, LeaderEpoch, Offset
from millstream.replication.errors import ProposalRefused
from millstream.replication.isr_port import IsrAnswer, IsrState
from millstream.replication.leader import FollowerFetch, LeaderReplicas, LeaderState, ProposedIsr

ME = BrokerId(1)
FOLLOWERS = [BrokerId(2), BrokerId(3), BrokerId(4)]
ALL = (ME, *FOLLOWERS)
EPOCH = LeaderEpoch(3)
LAG_S = 10.0
IN_SYNC_MIN = 2

followers = st.sampled_from(FOLLOWERS)


class Leading(RuleBasedStateMachine):
    """One leader epoch. `isr` and `version` are the controller's truth."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.end = Offset(0)
        self.high = Offset(0)
        self.isr: set[BrokerId] = set(ALL)
        self.version = 0
        self.has = dict.fromkeys(FOLLOWERS, 0)
        """What each follower holds of this leader's log."""
        self.epochs = {one: BrokerEpoch(10) for one in ALL}
        self.on_their_way: list[ProposedIsr] = []
        """Sent to the controller and not looked at; some will never be answered."""
        self.unanswered: list[tuple[ProposedIsr, IsrAnswer]] = []
        self.machine = LeaderReplicas(
            ME, self.truth(), epoch_start=Offset(0), now_s=0.0, epoch_of=self.epochs.get
        )

    def truth(self) -> LeaderState:
        isr = tuple(one for one in ALL if one in self.isr)
        return LeaderState(EPOCH, self.version, ALL, isr, IN_SYNC_MIN)

    def settle(self) -> None:
        is_enough = len(self.machine.state.isr) >= IN_SYNC_MIN
        mark = self.machine.high_watermark(self.end)
        assert mark <= self.high or is_enough, "I-09"
        self.high = max(self.high, mark)

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.end = Offset(self.end + count)
        self.settle()

    @rule(follower=followers, part=st.floats(0, 1))
    def fetch(self, follower: BrokerId, part: float) -> None:
        """What it holds is what it asks for; then it gets more."""
        offset = Offset(self.has[follower])
        fetched = FollowerFetch(follower, self.epochs[follower], EPOCH, offset)
        self.machine.note_fetch(fetched, leader_end=self.end, now_s=self.now_s)
        self.has[follower] += int((self.end - offset) * part)
        self.machine.update_catching_up(own_end=self.end, now_s=self.now_s, lag_s=LAG_S)
        self.settle()

    @rule(follower=followers, back=st.integers(0, 2), offset=st.integers(0, 50))
    def hear_an_older_epoch(self, follower: BrokerId, back: int, offset: int) -> None:
        """Delayed on the way: of another leader epoch, or of an incarnation that is gone."""
        fetched = FollowerFetch(
            follower,
            BrokerEpoch(self.epochs[follower] - (back == 0)),
            LeaderEpoch(EPOCH - back),
            Offset(min(offset, self.end)),
        )
        if back or self.machine.is_stale(follower, fetched.broker_epoch):
            noted = back != 0 and self.machine.note_fetch(
                fetched, leader_end=self.end, now_s=self.now_s
            )
            assert not noted
        self.settle()

    @rule(seconds=st.sampled_from([0.5, 2.0, LAG_S + 1]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def propose(self) -> None:
        wanted = self.machine.next_proposal(
            high_watermark=self.high, own_end=self.end, now_s=self.now_s, lag_s=LAG_S
        )
        if wanted is not None:
            self.machine.note_proposed(wanted)
            self.on_their_way.append(wanted)

    @rule(data=st.data())
    def decide(self, data: st.DataObject) -> None:
        """The controller looks at a proposal, in any order, however old."""
        if not self.on_their_way:
            return
        number = data.draw(st.integers(0, len(self.on_their_way) - 1))
        proposed = self.on_their_way.pop(number)
        is_fresh = all(one.broker_epoch in (-1, self.epochs[one.broker_id]) for one in proposed.isr)
        if proposed.partition_epoch != self.version or not is_fresh:
            self.unanswered.append((proposed, ProposalRefused("refused")))
            return
        self.isr = {one.broker_id for one in proposed.isr}
        self.version += 1
        told = self.truth()
        answer = IsrState(ME, EPOCH, told.isr, told.partition_epoch)
        self.unanswered.append((proposed, answer))

    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        if self.unanswered:
            number = data.draw(st.integers(0, len(self.unanswered) - 1))
            proposed, answer = self.unanswered.pop(number)
            self.machine.answered(proposed, answer, self.now_s)
            self.settle()

    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """The leader gives up waiting: decided, or yet to be decided."""
        waiting = [one for one, _ in self.unanswered] + self.on_their_way
        if waiting:
            proposed = data.draw(st.sampled_from(waiting))
            self.unanswered = [one for one in self.unanswered if one[0] is not proposed]
            self.machine.answered(proposed, NotController(), self.now_s)
            self.settle()

    @rule()
    def hear_the_metadata(self) -> None:
        self.machine.configure(self.truth(), epoch_start=Offset(0), now_s=self.now_s)
        self.settle()

    @rule(follower=followers, kept=st.floats(0, 1))
    def restart(self, follower: BrokerId, kept: float) -> None:
        """Without its tail; the controller takes it out before it counts as alive (trap 15)."""
        self.has[follower] = int(self.has[follower] * kept)
        self.epochs[follower] = BrokerEpoch(self.epochs[follower] + 1)
        if follower in self.isr:
            self.isr.discard(follower)
            self.version += 1

    @invariant()
    def what_counts_is_on_everybody_in_sync(self) -> None:
        for one in self.isr - {ME}:
            assert self.has[one] >= self.high, ("I-13", one, self.has, self.high)
        assert self.isr <= self.machine.maximal_isr | self._newer()

    def _newer(self) -> set[BrokerId]:
        """Where the controller has changed what the leader has not heard of."""
        return self.isr if self.version > self.machine.state.partition_epoch else set()


Leading.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
test_everything_that_counts_is_on_everybody_in_sync = Leading.TestCase
