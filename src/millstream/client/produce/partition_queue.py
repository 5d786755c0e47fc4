"""The batches of one partition: sent in order, sent again in order, stored once.

A broker accepts a batch of a producer (id and epoch) only with the sequence that follows the last
one, and acknowledges a duplicate of the last five. Consequences here:

- A batch keeps its sequence until it is stored or refused for good. One whose outcome is open is
  repeated unchanged, never renumbered: it may be in the log.
- When a sequence is missing for good (its batch was refused, or the broker lost it) no batch after
  it can have been stored, and all of them are renumbered under a new epoch (KIP-360), once
  everything before has ended and nothing is in flight any more. That a broker misses a batch is
  believed only when no request can linger: one whose connection was lost may still be stored, and
  its batch is not missing then. And only when it misses every batch that was sent: after a crash
  Kafka remembers only a producer's last batch, refuses the four before it as it refuses a gap, and
  only its response to the last one shows that they are stored.
- A broker that does not know a producer accepts any sequence. So until a first batch is stored
  under an epoch only one is in flight: the second could be accepted without the first.
- A broker remembers the last five batches. So no new batch is sent that would be the sixth counted
  from the oldest open one, stored ones in between included: a duplicate of the oldest could not be
  distinguished from a gap.
- All batches in flight went to one broker: two could store them in another order.
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
"""How long a broker may take to read and store a request after its connection was lost. It is a
matter of milliseconds; a broker that hangs for longer has lost its leaderships after that."""

_NOWHERE: Final[Order] = (2**63, 0)
"""After everything."""


def _order(batch: Batch) -> Order:
    return batch.order


class PartitionQueue:
    """Does no I/O; `ProduceMachine` owns one for each partition."""

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
        """In order; those to be sent again come first."""
        self.in_flight: list[Batch] = []
        """In order."""
        self.destination: Hashable = None
        """Where those in flight went."""
        self.identity = NO_IDENTITY
        self.next_sequence = Sequence(0)
        self.is_proven = False
        """A batch was stored under this identity: the broker checks sequences."""
        self.hole_at = _NOWHERE
        """A sequence will never be stored: batches from here on need a new identity."""
        self.lost_s = float("-inf")
        """When a connection was last lost with batches in flight."""
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
        """Of the last one under this identity that ended with an unknown outcome."""
        self._missed: set[Order] = set()
        """Of those that the broker refused last because it misses an earlier batch."""

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
        """The first waiting batch; if the broker refused it as out of order, the next sent one."""
        first = self.waiting[0]
        is_behind = bool(self.in_flight) and self.in_flight[0].order < first.order
        if first.order not in self._missed or is_behind or self._is_behind_hole:
            return first
        following = next((one for one in self.waiting if one.order not in self._missed), None)
        if following is not None and following.sequence >= 0:
            return following
        return None if self.in_flight else first

    def next_to_send(self, destination: Hashable, now_s: float) -> Batch | None:
        """The batch that may be sent there now, identity aside."""
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
        """Whether the first waiting batch cannot be sent under the queue's identity."""
        if not self.is_idempotent:
            return False
        if self._is_behind_hole or self.identity is NO_IDENTITY:
            return True
        # Adopt a newer id when no batch of the older is open or lingers.
        if self.identity.producer_id == current.producer_id or now_s < self.lost_s + LINGERING_S:
            return False
        return not self.in_flight and self.waiting[0].sequence < 0

    def must_wait_for_lingering(self, current: Identity, now_s: float) -> bool:
        """Whether another producer id may not be used yet.

        A higher epoch fences lingering requests of the older; another id does not, and expired
        batches could be stored after those that are sent under it.
        """
        lingering_until_s = self.lost_s + LINGERING_S
        is_other = self.identity.producer_id not in (NO_PRODUCER_ID, current.producer_id)
        if not is_other or now_s >= lingering_until_s:
            return False
        self.not_before_s = max(self.not_before_s, lingering_until_s)
        return True

    def adopt(self, identity: Identity) -> None:
        """Restart with sequence 0. Nothing is in flight, and no waiting batch is stored."""
        invariant(not self.in_flight, "renumbered in flight", partition=self.partition)
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
        """The batch of `next_to_send` is in flight now."""
        self.waiting.remove(batch)
        self._missed.discard(batch.order)
        batch.sent_s = now_s
        if self.is_idempotent and batch.sequence < 0:
            batch.give(self.identity, self.next_sequence)
            self.next_sequence = sequence_after(self.next_sequence, batch.row_count)
        batch.was_sent = True
        # It may belong before others: those were sent after its last attempt and refused with it,
        # or it was stored by that attempt and this one is a duplicate.
        insort(self.in_flight, batch, key=_order)
        if batch.order not in self._window:
            insort(self._window, batch.order)
        self.destination = destination

    # -- answers

    def landed(self, batch: Batch) -> None:
        """It is not in flight any more."""
        self.in_flight.remove(batch)

    def stored(self, batch: Batch) -> None:
        if batch.identity == self.identity:
            self.is_proven = self.is_idempotent
            self._stored_to = max(self._stored_to, batch.order)
            self._missed.clear()
        self.failures = 0
        self.not_before_s = float("-inf")

    def again(self, batch: Batch) -> None:
        """Put it back into the queue, in order."""
        insort(self.waiting, batch, key=_order)

    def is_passed(self, batch: Batch) -> bool:
        """Whether a later batch was stored: then this one was stored before it."""
        return batch.identity == self.identity and batch.order < self._stored_to

    def ended_open(self, batch: Batch) -> None:
        """It expired, and may still be stored."""
        if batch.identity == self.identity:
            self._open_to = max(self._open_to, batch.order)

    def missed(self, batch: Batch) -> Batch | None:
        """The broker refused a batch, which waits again, because it misses an earlier one.

        With an open batch before it the gap closes by itself. Returns a batch of which it cannot be
        found out whether it is stored: the one that could have proved it has expired.
        """
        lingering_until_s = self.lost_s + LINGERING_S
        sent = [one for one in self if one.sequence >= 0]
        if batch.sent_s < lingering_until_s:
            if all(one.order >= batch.order for one in sent):
                self.not_before_s = max(self.not_before_s, lingering_until_s)
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
        """Replace a batch that was too large."""
        self._window.remove(batch.order)
        for part in parts:
            insort(self.waiting, part, key=_order)

    def lost_sequence(self, batch: Batch) -> None:
        """The batch is certainly not stored, and will not be under its present sequence."""
        if batch.sequence >= 0 and batch.identity == self.identity:
            self.hole_at = min(self.hole_at, batch.order)
