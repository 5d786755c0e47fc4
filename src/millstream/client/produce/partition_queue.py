"""The batches of one partition: sent in order, sent again in order, stored once.

A broker takes a batch of a producer (id and epoch) only with the sequence that follows the last
one, and answers a repetition of the last five with success. What follows from it here:

- A batch keeps its sequence until it is stored or refused for good. One whose outcome is open is
  repeated as it was, never renumbered: it may be in the log.
- When a sequence is missing for good (its batch was refused, or the broker lost it) nothing behind
  it can have been stored, and all of that is numbered anew under a new epoch (KIP-360), once
  everything before it has ended and nothing is under way any more. That a broker misses something
  is believed only when no request can linger: one whose connection was lost may still be stored,
  and what it brings is not missing then. And only when it misses every batch that was sent: after
  a crash Kafka remembers a producer's last batch alone, refuses the four before it as it refuses
  a gap, and only its answer to the last tells that they are stored.
- A broker that knows nothing of a producer takes any sequence. So until a first batch is stored
  under an epoch only one is under way: the second could be taken without the first.
- A broker remembers the last five batches. So nothing is sent for the first time that would be the
  sixth counted from the oldest one that is open, stored ones in between included: a repetition of
  the oldest could not be told from a gap.
- All that is under way went to one broker: two could store in another order.
"""

from bisect import insort
from collections.abc import Hashable, Iterator
from typing import Final

from millstream.client.produce.batches import NO_IDENTITY, Batch, Identity, sequence_after
from millstream.client.retries import Failure
from millstream.model.ids import NO_PRODUCER_ID, NO_SEQUENCE, Sequence, TopicPartition
from millstream.model.invariant import invariant
from millstream.model.limits import PRODUCER_BATCHES_KEPT

Order = tuple[int, int]

LINGERING_S: Final = 5.0
"""How long a broker may take to find and store a request after its connection was lost. It is a
matter of milliseconds; a broker that stands still for longer has lost its partitions after that."""

_NOWHERE: Final[Order] = (2**63, 0)
"""Behind everything."""


def _order(batch: Batch) -> Order:
    return batch.order


class PartitionQueue:
    """Decides alone; `ProduceMachine` owns one for each partition."""

    __slots__ = (
        "_missed",
        "_next_order",
        "_open_to",
        "_stored_to",
        "_window",
        "destination",
        "failures",
        "hole_at",
        "identity",
        "in_flight",
        "is_idempotent",
        "is_proven",
        "last",
        "lost_s",
        "next_sequence",
        "not_before_s",
        "partition",
        "waiting",
    )

    def __init__(self, partition: TopicPartition, *, is_idempotent: bool) -> None:
        self.partition = partition
        self.is_idempotent = is_idempotent
        self.waiting: list[Batch] = []
        """In order; those that were sent before stand in front."""
        self.in_flight: list[Batch] = []
        """In order."""
        self.destination: Hashable = None
        """Where those in flight went."""
        self.identity = NO_IDENTITY
        self.next_sequence = Sequence(0)
        self.is_proven = False
        """A batch was stored under this identity: the broker checks sequences."""
        self.hole_at = _NOWHERE
        """A sequence will never be stored: what waits from here on needs a new identity."""
        self.lost_s = float("-inf")
        """When a connection was last lost with batches under way."""
        self.failures = 0
        """Attempts in a row that failed."""
        self.not_before_s = float("-inf")
        self.last: Failure | None = None
        """Why nothing can be sent at present."""
        self._next_order = 0
        self._window: list[Order] = []
        """Of batches that were sent under this identity, from the oldest open one on."""
        self._stored_to: Order = (-1, 0)
        """Of the last one that was stored under this identity."""
        self._open_to: Order = (-1, 0)
        """Of the last one that ended, under this identity, without anybody knowing how."""
        self._missed: set[Order] = set()
        """Of those that the broker refused last because it misses what comes before them."""

    def __iter__(self) -> Iterator[Batch]:
        yield from self.in_flight
        yield from self.waiting

    @property
    def is_empty(self) -> bool:
        return not self.waiting and not self.in_flight

    def append(self, batch: Batch) -> None:
        batch.order = (self._next_order, 0)
        self._next_order += 1
        self.waiting.append(batch)

    # -- sending

    def _next(self) -> Batch | None:
        """The first that waits; when the broker misses it, the next one that was sent too."""
        first = self.waiting[0]
        is_behind = bool(self.in_flight) and self.in_flight[0].order < first.order
        if first.order not in self._missed or is_behind or self._is_behind_hole:
            return first
        following = next((one for one in self.waiting if one.order not in self._missed), None)
        if following is not None and following.sequence >= 0:
            return following
        return None if self.in_flight else first

    def next_to_send(self, destination: Hashable, now_s: float) -> Batch | None:
        """What may go there now, identity aside."""
        if not self.waiting or now_s < self.not_before_s:
            return None
        batch = self._next()
        if batch is None or not self.in_flight:
            return batch
        if self._is_behind_hole or destination != self.destination or not self.is_proven:
            return None
        return batch if self._fits_window(batch.order) else None

    def _fits_window(self, order: Order) -> bool:
        oldest = min(self.in_flight[0].order, self.waiting[0].order)
        self._window = [one for one in self._window if one >= oldest]
        return order in self._window or len(self._window) < PRODUCER_BATCHES_KEPT

    @property
    def _is_behind_hole(self) -> bool:
        return self.waiting[0].order >= self.hole_at

    def needs_identity(self, current: Identity, now_s: float) -> bool:
        """Whether the first that waits cannot go under the identity that the queue has."""
        if not self.is_idempotent:
            return False
        if self._is_behind_hole or self.identity is NO_IDENTITY:
            return True
        # Adopt a newer id when nothing of the older is open, or lingers.
        if self.identity.producer_id == current.producer_id or now_s < self.lost_s + LINGERING_S:
            return False
        return not self.in_flight and self.waiting[0].sequence < 0

    def must_wait_for_lingering(self, current: Identity, now_s: float) -> bool:
        """Whether another producer id may not be used yet.

        A higher epoch fences what lingers of the older; another id does not, and what was given
        up could be stored behind what is sent under it.
        """
        settled_s = self.lost_s + LINGERING_S
        is_other = self.identity.producer_id not in (NO_PRODUCER_ID, current.producer_id)
        if not is_other or now_s >= settled_s:
            return False
        self.not_before_s = max(self.not_before_s, settled_s)
        return True

    def adopt(self, identity: Identity) -> None:
        """Begin anew with sequence 0. Nothing is under way, and nothing that waits is stored."""
        invariant(not self.in_flight, "renumbered under way", partition=self.partition)
        invariant(identity != self.identity, "a sequence would be used twice", of=identity)
        first = self.waiting[0]
        is_clean = first.sequence < 0 or first.order >= self.hole_at
        invariant(is_clean, "renumbered although it may be stored", partition=self.partition)
        self.identity = identity
        self.next_sequence = Sequence(0)
        self.is_proven = False
        self.hole_at = _NOWHERE
        self._window = []
        self._missed.clear()
        self._stored_to = self._open_to = (-1, 0)
        for batch in self.waiting:
            batch.sequence = NO_SEQUENCE
            batch.may_be_stored = False

    def take(self, batch: Batch, destination: Hashable, now_s: float) -> None:
        """The `next_to_send` is under way now."""
        self.waiting.remove(batch)
        self._missed.discard(batch.order)
        batch.sent_s = now_s
        if self.is_idempotent and batch.sequence < 0:
            batch.give(self.identity, self.next_sequence)
            self.next_sequence = sequence_after(self.next_sequence, batch.row_count)
        batch.was_sent = True
        # It may belong before others: those were sent behind its last attempt and refused with it,
        # or it was stored by that attempt and this one is known as a repetition.
        insort(self.in_flight, batch, key=_order)
        if batch.order not in self._window:
            insort(self._window, batch.order)
        self.destination = destination

    # -- answers

    def landed(self, batch: Batch) -> None:
        """It is not under way any more."""
        self.in_flight.remove(batch)

    def stored(self, batch: Batch) -> None:
        if batch.identity == self.identity:
            self.is_proven = self.is_idempotent
            self._stored_to = max(self._stored_to, batch.order)
            self._missed.clear()
        self.failures = 0
        self.not_before_s = float("-inf")

    def again(self, batch: Batch) -> None:
        """It waits in its place."""
        insort(self.waiting, batch, key=_order)

    def is_passed(self, batch: Batch) -> bool:
        """Whether one behind it was stored: then it was stored before, or that could not be."""
        return batch.identity == self.identity and batch.order < self._stored_to

    def ended_open(self, batch: Batch) -> None:
        """It was given up, and may be stored all the same."""
        if batch.identity == self.identity:
            self._open_to = max(self._open_to, batch.order)

    def missed(self, batch: Batch) -> Batch | None:
        """The broker misses what should come before a batch, which waits again.

        With something open before it the gap closes by itself. Returned is a batch that nobody can
        tell of whether it is stored: the one that could have proved it was given up.
        """
        settled_s = self.lost_s + LINGERING_S
        sent = [one for one in self if one.sequence >= 0]
        if batch.sent_s < settled_s:
            if all(one.order >= batch.order for one in sent):
                self.not_before_s = max(self.not_before_s, settled_s)
            return None
        self._missed.add(batch.order)
        if not all(one.order in self._missed for one in sent):
            return None
        self._missed.clear()
        first = sent[0]
        if first.may_be_stored and first.order < self._open_to:
            return first
        self.lost_sequence(first)
        return None

    def put_parts(self, batch: Batch, parts: list[Batch]) -> None:
        """In place of a batch that was too large."""
        self._window.remove(batch.order)
        for part in parts:
            insort(self.waiting, part, key=_order)

    def lost_sequence(self, batch: Batch) -> None:
        """The batch is not stored, for certain, and will not be under the sequence that it has."""
        if batch.sequence >= 0 and batch.identity == self.identity:
            self.hole_at = min(self.hole_at, batch.order)
