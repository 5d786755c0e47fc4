"""What a leader knows of its followers, and what follows from it. Pure: no clock, nothing waits.

The high watermark is the smallest end over the *maximal* ISR: the replicas that the controller has
committed as in sync, and those that it may have committed because they were proposed. So every
replica that may have been elected meanwhile has everything below it.
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

PROPOSAL_RETRY_S: Final = 1.0
"""After the controller refused, or was unreachable: by then new metadata may have arrived."""


class LeaderState(NamedTuple):
    """A partition that this broker leads, by the metadata or the controller's answer."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    effective_min_isr: int
    """`min.insync.replicas`, at most the number of replicas."""
    unfit: tuple[BrokerId, ...] = ()
    """Replicas that cannot join the ISR: lost, or without room. Nothing waits for them."""


class FollowerFetch(NamedTuple):
    """A follower's fetch: it has everything below the offset in the epoch that it names."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    leader_epoch: LeaderEpoch
    """The epoch that the follower named, or the leader's where it named none."""
    offset: Offset
    log_start: Offset = NO_OFFSET
    """Where the follower's log begins, if it says so."""


class Progress:
    """One follower's progress, as its fetches in this leader epoch show it."""

    __slots__ = (
        "broker_epoch",
        "caught_up_s",
        "end",
        "last_fetch_s",
        "leader_end_at_last_fetch",
        "log_start",
    )

    def __init__(self, caught_up_s: float) -> None:
        self.broker_epoch = NO_BROKER_EPOCH
        self.end: Offset = NO_OFFSET
        """Unknown until it fetches: what it had in another epoch may have been truncated since."""
        self.log_start: Offset = NO_OFFSET
        self.caught_up_s = caught_up_s
        """When it last had everything that the leader had."""
        self.last_fetch_s = NEVER_S
        self.leader_end_at_last_fetch: Offset = NO_OFFSET
        """The leader's log end at its last fetch."""

    def note(self, fetch: FollowerFetch, leader_end: Offset, now_s: float) -> None:
        """Kafka's rule: a fetch at or above the log end of the previous fetch had caught up at that
        time.
        """
        if fetch.offset >= leader_end:
            self.caught_up_s = now_s
        elif fetch.offset >= self.leader_end_at_last_fetch >= 0:
            self.caught_up_s = max(self.caught_up_s, self.last_fetch_s)
        self.broker_epoch = fetch.broker_epoch
        self.end = fetch.offset
        self.log_start = fetch.log_start
        self.leader_end_at_last_fetch, self.last_fetch_s = leader_end, now_s

    def is_caught_up(self, leader_end: Offset, now_s: float, lag_max_s: float) -> bool:
        return self.end == leader_end or now_s - self.caught_up_s <= lag_max_s


class ProposedIsr(NamedTuple):
    """A proposed ISR, and the state it is based on."""

    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[IsrMember, ...]

    @property
    def broker_ids(self) -> frozenset[BrokerId]:
        return frozenset(one.broker_id for one in self.isr)


class LeaderReplicas:
    """The followers of one partition and its sets of in-sync replicas. See the module."""

    __slots__ = (
        "_broker_id",
        "_catching_up",
        "_epoch_of",
        "_epoch_start",
        "_followers",
        "_maximal",
        "_pending",
        "_propose_after_s",
        "_uncertain",
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
        """`epoch_of`: the epoch of a live broker, NO_BROKER_EPOCH where it is not known."""
        self._broker_id = broker_id
        self._epoch_of = epoch_of
        self._lead(state, epoch_start, now_s)

    def _lead(self, state: LeaderState, epoch_start: Offset, now_s: float) -> None:
        self.state = state
        self._epoch_start = epoch_start
        """Where this leader's epoch begins: a follower below it may have diverged there."""
        # In-sync followers get the full lag time to fetch; the others have shown nothing yet.
        self._followers = {
            one: Progress(now_s if one in state.isr else NEVER_S)
            for one in state.replicas
            if one != self._broker_id
        }
        self._pending: ProposedIsr | None = None
        """The proposal that is in flight."""
        self._uncertain: frozenset[BrokerId] = frozenset()
        """Brokers named in proposals whose outcome is unknown: they may be, or become, in sync."""
        self._propose_after_s = NEVER_S
        self._catching_up: tuple[BrokerId, ...] = ()
        """Not in sync yet but close to it: the high watermark waits for them."""
        self._update_sets()

    def _update_sets(self) -> None:
        proposed = self._pending.broker_ids if self._pending is not None else frozenset()
        self._maximal = frozenset(self.state.isr) | proposed | self._uncertain
        kept_out = (*self._maximal, *self.state.unfit)
        self._catching_up = tuple(one for one in self._catching_up if one not in kept_out)

    # -- facts -----------------------------------------------------------------------------

    @property
    def maximal_isr(self) -> frozenset[BrokerId]:
        """All brokers that may be in sync, given every proposal that was sent."""
        return self._maximal

    @property
    def is_enough(self) -> bool:
        """Whether as many are in sync as the topic requires (I-09)."""
        return len(self.state.isr) >= self.state.effective_min_isr

    @property
    def is_proposing(self) -> bool:
        return self._pending is not None

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
        """Apply newer metadata; a new leader epoch begins with nothing known of the followers."""
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
            # Only the topic's settings can be newer in it.
            self.state = ours._replace(effective_min_isr=state.effective_min_isr)
            return
        self._take(state)
        for one in state.replicas:
            if one != self._broker_id and one not in self._followers:
                self._followers[one] = Progress(now_s if one in state.isr else NEVER_S)
        for one in [one for one in self._followers if one not in state.replicas]:
            del self._followers[one]
        self._catching_up = tuple(one for one in self._catching_up if one in self._followers)

    def _take(self, state: LeaderState) -> None:
        if state.partition_epoch > self.state.partition_epoch:
            # A proposal based on an older epoch is this one, or will be refused.
            self._pending, self._uncertain = None, frozenset()
        self.state = state
        self._update_sets()

    # -- fetches ---------------------------------------------------------------------------

    def note_fetch(self, fetch: FollowerFetch, *, leader_end: Offset, now_s: float) -> bool:
        """Record a follower's progress; False, with nothing recorded, for another leader epoch
        (I-09).
        """
        progress = self._followers.get(fetch.broker_id)
        if progress is None or fetch.leader_epoch != self.state.leader_epoch:
            return False
        if fetch.broker_epoch < progress.broker_epoch:
            return False
        if fetch.broker_epoch > progress.broker_epoch and progress.end != NO_OFFSET:
            # What its previous incarnation had says nothing about this one (KIP-903).
            progress = self._followers[fetch.broker_id] = Progress(progress.caught_up_s)
        progress.note(fetch, leader_end, now_s)
        return True

    def note_caught_up(self, leader_end: Offset, now_s: float) -> None:
        """Periodically: a follower that has everything is caught up now, even if it has no reason
        to fetch.
        """
        for progress in self._followers.values():
            if progress.end == leader_end:
                progress.caught_up_s = now_s

    def high_watermark(self, own_end: Offset) -> Offset:
        """How far everything is known to be replicated; NO_OFFSET where the high watermark must not
        move: too few are in sync, or one of them has not fetched in this epoch (I-09).
        """
        if not self.is_enough:
            return NO_OFFSET
        lowest = own_end
        for one in self._maximal:
            if one != self._broker_id:
                progress = self._followers.get(one)
                # In sync but no longer a replica: newer metadata will resolve it.
                lowest = min(lowest, progress.end if progress is not None else NO_OFFSET)
        for one in self._catching_up:
            lowest = min(lowest, self._followers[one].end)
        return lowest

    def low_watermark(self, own_start: Offset) -> Offset:
        """The smallest log start of the live replicas, as in Kafka.

        No client can read below it any more. NO_OFFSET while one of them has not fetched yet.
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
        """In-sync followers that have the record at the offset, with their log ends (KIP-392)."""
        return [
            (progress.end, one)
            for one, progress in self._followers.items()
            if one in self.state.isr and progress.end >= offset and progress.log_start <= offset
        ]

    # -- proposals -------------------------------------------------------------------------

    def update_catching_up(self, *, own_end: Offset, now_s: float, lag_s: float) -> None:
        """Update which followers the high watermark waits for: those that are close to being in
        sync.

        Without that a follower that is always a few records behind would never join the ISR.
        """
        self._catching_up = tuple(
            one
            for one, progress in self._followers.items()
            if one not in self._maximal
            and progress.end != NO_OFFSET
            and progress.is_caught_up(own_end, now_s, lag_s)
            and self._is_eligible(one, progress)
        )

    def next_proposal(
        self, *, high_watermark: Offset, own_end: Offset, now_s: float, lag_s: float
    ) -> ProposedIsr | None:
        """The ISR to propose to the controller now, if any; then call `note_proposed`.

        One change at a time. While the outcome of an earlier proposal is unknown, another is sent
        in any case, if need be with the current ISR: that makes a new partition epoch, and every
        proposal based on the old one is refused from then on.
        """
        if self._pending is not None or now_s < self._propose_after_s:
            return None
        isr = set(self.state.isr)
        late = {one for one in isr if self._is_late(one, own_end, now_s, lag_s)}
        new = {
            one
            for one, progress in self._followers.items()
            if one not in isr
            and self._may_join(one, progress, high_watermark)
            and not self._is_late(one, own_end, now_s, lag_s)  # it would be removed at once
        }
        # Removals first: they let writes continue, and additions are proposed right after.
        members = isr - late if late else isr | new
        if members == isr and not self._uncertain:
            return None
        return ProposedIsr(
            self.state.leader_epoch, self.state.partition_epoch, self._members(members)
        )

    def _is_late(self, one: BrokerId, own_end: Offset, now_s: float, lag_s: float) -> bool:
        if one == self._broker_id:
            return False
        progress = self._followers.get(one)
        return progress is None or not progress.is_caught_up(own_end, now_s, lag_s)

    def _may_join(self, one: BrokerId, progress: Progress, high_watermark: Offset) -> bool:
        """KIP-320 rule 4: it has every committed record, and has reached this leader's epoch."""
        needed = max(high_watermark, self._epoch_start)
        return progress.end >= needed and self._is_eligible(one, progress)

    def _is_eligible(self, one: BrokerId, progress: Progress) -> bool:
        registered = self._epoch_of(one)
        if registered is None or one in self.state.unfit:
            return False
        return NO_BROKER_EPOCH in (registered, progress.broker_epoch) or (
            registered == progress.broker_epoch
        )

    def _members(self, ids: Iterable[BrokerId]) -> tuple[IsrMember, ...]:
        """In the order of the assignment, each with the broker epoch that it fetched with."""
        places = {one: place for place, one in enumerate(self.state.replicas)}
        ordered = sorted(ids, key=lambda one: (places.get(one, len(places)), one))
        return tuple(IsrMember(one, self._broker_epoch_of(one)) for one in ordered)

    def _broker_epoch_of(self, one: BrokerId) -> BrokerEpoch:
        if one == self._broker_id:
            return self._epoch_of(one) or NO_BROKER_EPOCH
        progress = self._followers.get(one)
        if progress is not None and progress.end != NO_OFFSET:
            return progress.broker_epoch
        # In sync already, with no fetch in this leader epoch: had it been restarted since, the
        # controller would have removed it, and would refuse a proposal based on that state.
        return self._epoch_of(one) or NO_BROKER_EPOCH

    def note_proposed(self, proposed: ProposedIsr) -> None:
        """The proposal is sent: from now on its members are part of the maximal ISR."""
        invariant(
            self._pending is None and proposed.partition_epoch == self.state.partition_epoch,
            "I-13 a second change of the in-sync replicas while one is under way",
            proposed=proposed,
        )
        self._pending = proposed
        self._update_sets()

    def answered(self, proposed: ProposedIsr, answer: IsrAnswer, now_s: float) -> bool:
        """Handle the controller's answer; whether the in-sync replicas may have changed.

        A change that was made is applied from the metadata, where earlier changes of settings come
        first: with an older `min.insync.replicas` the high watermark could pass replicas that the
        controller holds eligible. Until then its members stay in the maximal ISR, and nothing else
        is proposed.

        After an error the change may still have been made, or may be later, unless it was
        definitely refused: its members stay in the maximal ISR until a newer state of the partition
        is known.
        """
        if proposed is not self._pending:
            return False  # the metadata was faster
        ours = self.state.partition_epoch
        if not isinstance(answer, OperatingError) and answer.partition_epoch > ours:
            return False
        self._pending = None
        self._propose_after_s = now_s + PROPOSAL_RETRY_S
        is_refused = isinstance(answer, ProposalRefused)
        if not is_refused:
            self._uncertain |= proposed.broker_ids - set(self.state.isr)
        self._update_sets()
        return is_refused
