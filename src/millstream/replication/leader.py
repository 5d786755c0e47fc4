"""What a leader knows of its followers, and what follows from it. Pure: no clock, nothing waits.

The high watermark is the smallest end over the *maximal* set of in-sync replicas: those that the
controller has committed, and those that it may have committed because they were asked for. Whoever
may be elected by now has then everything below it.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from millstream.model.errors import OperatingError
from millstream.model.ids import (
    NO_BROKER_EPOCH,
    NO_OFFSET,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
)
from millstream.model.invariant import invariant
from millstream.replication.errors import ProposalRefused
from millstream.replication.isr_port import IsrAnswer, IsrMember

NEVER_S: Final = float("-inf")

ASK_AGAIN_S: Final = 1.0
"""After the controller refused, or could not be asked: by then the metadata may have come."""


class LeaderState(NamedTuple):
    """What the metadata, or the controller's answer, says of a partition that is led here."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    in_sync_wanted: int
    """`min.insync.replicas`, at most the number of replicas."""


class Fetched(NamedTuple):
    """A follower's fetch: it has everything below the offset, and says in which epoch."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    """The one that the follower named, or the leader's where it named none."""
    offset: Offset
    log_start: Offset = NO_OFFSET
    """Where the follower's log begins, where it tells."""


class Progress:
    """One follower, as its fetches of this leader epoch show it."""

    __slots__ = (
        "asked_s",
        "broker_epoch",
        "caught_up_s",
        "end",
        "leader_end_then",
        "log_start",
    )

    def __init__(self, caught_up_s: float) -> None:
        self.broker_epoch = NO_BROKER_EPOCH
        self.end: Offset = NO_OFFSET
        """Unknown until it fetches: what it had in another epoch may have been cut since."""
        self.log_start: Offset = NO_OFFSET
        self.caught_up_s = caught_up_s
        """When it last had all that the leader had."""
        self.asked_s = NEVER_S
        self.leader_end_then: Offset = NO_OFFSET
        """The leader's end when it last asked."""

    def note(self, fetched: Fetched, leader_end: Offset, now_s: float) -> None:
        """Kafka's rule: whoever asks for what was the end the last time had caught up with that."""
        if fetched.offset >= leader_end:
            self.caught_up_s = now_s
        elif fetched.offset >= self.leader_end_then >= 0:
            self.caught_up_s = max(self.caught_up_s, self.asked_s)
        self.broker_epoch = fetched.broker_epoch
        self.end = fetched.offset
        self.log_start = fetched.log_start
        self.leader_end_then, self.asked_s = leader_end, now_s

    def is_caught_up(self, leader_end: Offset, now_s: float, lag_max_s: float) -> bool:
        return self.end == leader_end or now_s - self.caught_up_s <= lag_max_s


class Proposed(NamedTuple):
    """A change that the controller was asked for, and the state it is based on."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[IsrMember, ...]

    @property
    def broker_ids(self) -> frozenset[BrokerId]:
        return frozenset(one.broker_id for one in self.isr)


class LeaderReplicas:
    """The followers of one partition and its sets of in-sync replicas. See the module."""

    __slots__ = (
        "_ask_after_s",
        "_asked",
        "_broker_id",
        "_doubtful",
        "_epoch_of",
        "_epoch_start",
        "_followers",
        "_maximal",
        "_waits",
        "state",
    )

    def __init__(
        self,
        broker_id: BrokerId,
        state: LeaderState,
        *,
        epoch_start: Offset,
        now_s: float,
        epoch_of: Callable[[BrokerId], BrokerEpoch | None] = lambda _: NO_BROKER_EPOCH,
    ) -> None:
        """`epoch_of`: of a broker that is alive, NO_BROKER_EPOCH where that is not known."""
        self._broker_id = broker_id
        self._epoch_of = epoch_of
        self._lead(state, epoch_start, now_s)

    def _lead(self, state: LeaderState, epoch_start: Offset, now_s: float) -> None:
        self.state = state
        self._epoch_start = epoch_start
        """Where this leader's epoch begins: a follower below it may have something else there."""
        # Those in sync have the whole time to show themselves; the others have shown nothing.
        self._followers = {
            one: Progress(now_s if one in state.isr else NEVER_S)
            for one in state.replicas
            if one != self._broker_id
        }
        self._asked: Proposed | None = None
        """The change that is under way."""
        self._doubtful: frozenset[BrokerId] = frozenset()
        """Whom changes named of which nobody knows whether they were, or will be, made."""
        self._ask_after_s = NEVER_S
        self._waits: tuple[BrokerId, ...] = ()
        """Not in sync yet and close to it: the high watermark waits for them."""
        self._settle_sets()

    def _settle_sets(self) -> None:
        asked = self._asked.broker_ids if self._asked is not None else frozenset()
        self._maximal = frozenset(self.state.isr) | asked | self._doubtful
        self._waits = tuple(one for one in self._waits if one not in self._maximal)

    # -- facts -----------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """Everybody who may be in sync by what the controller was told."""
        return self._maximal

    @property
    def is_enough(self) -> bool:
        """Whether as many are in sync as the topic asks for (I-09)."""
        return len(self.state.isr) >= self.state.in_sync_wanted

    @property
    def is_proposing(self) -> bool:
        return self._asked is not None

    @property
    def epoch_start(self) -> Offset:
        return self._epoch_start

    def progress_of(self, broker_id: BrokerId) -> Progress | None:
        return self._followers.get(broker_id)

    def is_stale(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether a fetch comes from an incarnation that was replaced (KIP-903)."""
        if broker_epoch == NO_BROKER_EPOCH:
            return False
        known = self._followers[broker_id].broker_epoch
        return broker_epoch < max(known, self._epoch_of(broker_id) or NO_BROKER_EPOCH)

    # -- the metadata ----------------------------------------------------------------------

    def configure(self, state: LeaderState, *, epoch_start: Offset, now_s: float) -> None:
        """Take over what is newer; a new leader epoch begins with nothing known."""
        ours = self.state
        if state.leader_epoch > ours.leader_epoch:
            self._lead(state, epoch_start, now_s)
            return
        invariant(
            state.leader_epoch == ours.leader_epoch,
            "I-15 a leader epoch went down",
            ours=ours.leader_epoch,
            theirs=state.leader_epoch,
        )
        if state.partition_epoch < ours.partition_epoch:
            # Only what the settings say can be news in it.
            self.state = ours._replace(in_sync_wanted=state.in_sync_wanted)
            return
        self._take(state)
        for one in state.replicas:
            if one != self._broker_id and one not in self._followers:
                self._followers[one] = Progress(now_s if one in state.isr else NEVER_S)
        for one in [one for one in self._followers if one not in state.replicas]:
            del self._followers[one]
        self._waits = tuple(one for one in self._waits if one in self._followers)

    def _take(self, state: LeaderState) -> None:
        if state.partition_epoch > self.state.partition_epoch:
            # What was asked for on the base of an older one is this, or will be refused.
            self._asked, self._doubtful = None, frozenset()
        self.state = state
        self._settle_sets()

    # -- fetches ---------------------------------------------------------------------------

    def fetched(self, fetched: Fetched, *, leader_end: Offset, now_s: float) -> bool:
        """Note a follower's progress; False, and nothing noted, for one of another epoch (I-09)."""
        progress = self._followers.get(fetched.broker_id)
        if progress is None or fetched.leader_epoch != self.state.leader_epoch:
            return False
        if fetched.broker_epoch < progress.broker_epoch:
            return False
        if fetched.broker_epoch > progress.broker_epoch and progress.end != NO_OFFSET:
            # What the last incarnation had says nothing about this one (KIP-903).
            progress = self._followers[fetched.broker_id] = Progress(progress.caught_up_s)
        progress.note(fetched, leader_end, now_s)
        return True

    def note_caught_up(self, leader_end: Offset, now_s: float) -> None:
        """By the clock: who has everything has it now, though nothing makes it ask again."""
        for progress in self._followers.values():
            if progress.end == leader_end:
                progress.caught_up_s = now_s

    def high_watermark(self, own_end: Offset) -> Offset:
        """How far everything is replicated, for all that is known; NO_OFFSET where it must not
        move: too few are in sync, or one has not been heard of in this epoch (I-09).
        """
        if not self.is_enough:
            return NO_OFFSET
        lowest = own_end
        for one in self._maximal:
            if one != self._broker_id:
                progress = self._followers.get(one)
                # One that is in sync and no replica any more: the metadata will tell.
                lowest = min(lowest, progress.end if progress is not None else NO_OFFSET)
        for one in self._waits:
            lowest = min(lowest, self._followers[one].end)
        return lowest

    def low_watermark(self, own_start: Offset) -> Offset:
        """Where the log of everybody who is alive begins at the latest, as Kafka counts it.

        Nobody can read below it any more. NO_OFFSET while one of them has not been heard of.
        """
        return min(
            (
                progress.log_start
                for one, progress in self._followers.items()
                if self._epoch_of(one) is not None and progress.log_start < own_start
            ),
            default=own_start,
        )

    def holders(self, offset: Offset) -> list[tuple[Offset, BrokerId]]:
        """Followers in sync that have the record at the offset, by their ends (KIP-392)."""
        return [
            (progress.end, one)
            for one, progress in self._followers.items()
            if one in self.state.isr and progress.end >= offset and progress.log_start <= offset
        ]

    # -- proposals -------------------------------------------------------------------------

    def look(self, *, own_end: Offset, now_s: float, lag_s: float) -> None:
        """Whom the high watermark waits for: those that could be in sync, but for its running away.

        Without that a follower that is always a few records behind would never be.
        """
        self._waits = tuple(
            one
            for one, progress in self._followers.items()
            if one not in self._maximal
            and progress.end != NO_OFFSET
            and progress.is_caught_up(own_end, now_s, lag_s)
            and self._is_eligible(one, progress)
        )

    def wanted(
        self, *, high_watermark: Offset, own_end: Offset, now_s: float, lag_s: float
    ) -> Proposed | None:
        """What to ask the controller for now, if anything; then call `asked`.

        One change at a time. While it is unknown what became of an earlier one the controller is
        asked in any case, if need be for what is so: that makes a new partition epoch, and whatever
        was asked on the base of the old one is refused from then on.
        """
        if self._asked is not None or now_s < self._ask_after_s:
            return None
        isr = set(self.state.isr)
        late = {one for one in isr if self._is_late(one, own_end, now_s, lag_s)}
        new = {
            one
            for one, progress in self._followers.items()
            if one not in isr
            and self._may_join(one, progress, high_watermark)
            and not self._is_late(one, own_end, now_s, lag_s)  # it would be put out at once
        }
        # Out first: it lets writes go on, and whoever comes in is asked for right after it.
        members = isr - late if late else isr | new
        if members == isr and not self._doubtful:
            return None
        return Proposed(self.state.leader_epoch, self.state.partition_epoch, self._members(members))

    def _is_late(self, one: BrokerId, own_end: Offset, now_s: float, lag_s: float) -> bool:
        if one == self._broker_id:
            return False
        progress = self._followers.get(one)
        return progress is None or not progress.is_caught_up(own_end, now_s, lag_s)

    def _may_join(self, one: BrokerId, progress: Progress, high_watermark: Offset) -> bool:
        """KIP-320 rule 4: it has everything that counts, and is in this leader's epoch."""
        needed = max(high_watermark, self._epoch_start)
        return progress.end >= needed and self._is_eligible(one, progress)

    def _is_eligible(self, one: BrokerId, progress: Progress) -> bool:
        registered = self._epoch_of(one)
        if registered is None:
            return False
        return NO_BROKER_EPOCH in (registered, progress.broker_epoch) or (
            registered == progress.broker_epoch
        )

    def _members(self, ids: Iterable[BrokerId]) -> tuple[IsrMember, ...]:
        """In the order of the assignment; each with the incarnation that was heard."""
        places = {one: place for place, one in enumerate(self.state.replicas)}
        ordered = sorted(ids, key=lambda one: (places.get(one, len(places)), one))
        return tuple(IsrMember(one, self._heard_epoch(one)) for one in ordered)

    def _heard_epoch(self, one: BrokerId) -> BrokerEpoch:
        if one == self._broker_id:
            return self._epoch_of(one) or NO_BROKER_EPOCH
        progress = self._followers.get(one)
        if progress is not None and progress.end != NO_OFFSET:
            return progress.broker_epoch
        # In sync already, and not heard of in this leader epoch: had it been restarted since, the
        # controller would have taken it out, and would refuse what is based on that state.
        return self._epoch_of(one) or NO_BROKER_EPOCH

    def asked(self, proposed: Proposed) -> None:
        """The change is on its way: from now on its members count."""
        invariant(
            self._asked is None and proposed.partition_epoch == self.state.partition_epoch,
            "I-13 a second change of the in-sync replicas while one is under way",
            proposed=proposed,
        )
        self._asked = proposed
        self._settle_sets()

    def answered(self, proposed: Proposed, answer: IsrAnswer, now_s: float) -> bool:
        """What became of it; whether the in-sync replicas may be others now.

        A change that was made is taken from the metadata, where settings that came before it come
        first: with an older `min.insync.replicas` the high watermark could run away from those that
        the controller holds eligible. Until then its members count, and nothing else is asked.

        After an error the change may have been made all the same, or may be yet, unless it was
        surely refused: whom it named counts until a newer state of the partition is known.
        """
        if proposed is not self._asked:
            return False  # the metadata was faster
        ours = self.state.partition_epoch
        if not isinstance(answer, OperatingError) and answer.partition_epoch > ours:
            return False
        self._asked = None
        self._ask_after_s = now_s + ASK_AGAIN_S
        is_refused = isinstance(answer, ProposalRefused)
        if not is_refused:
            self._doubtful |= proposed.broker_ids - set(self.state.isr)
        self._settle_sets()
        return is_refused
