"""What a partition knows of its producers: the machine behind idempotence and transactions.

It decides, before a batch is written, whether it is new, a retry, or wrong; it follows every batch
and marker that was appended; and it knows the oldest undecided transaction, which limits what
read_committed consumers may see. Pure: no clock, no disk. The order on a leader is `check`, write,
`apply`; followers and recovery only `apply`: what a leader accepted is not checked again.

The rules are those of Kafka 4.3. Verification of a transaction with its coordinator before the
first write (KIP-890) is left to the caller; `has_open_transaction` says when that is due.
"""

from array import array
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.kernels import slots
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
)
from millstream.model.errors import (
    InvalidRecords,
    InvalidTransactionState,
    OperatingError,
    OutOfOrderSequence,
    StaleProducerEpoch,
)
from millstream.model.ids import (
    NO_OFFSET,
    NO_SEQUENCE,
    Offset,
    ProducerEpoch,
    ProducerId,
    Sequence,
    TimestampMs,
)
from millstream.model.invariant import invariant
from millstream.storage.producers.undecided import UndecidedTransactions

SEQUENCE_MAX: Final = 2**31 - 1
"""The sequence after this one is 0."""
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
EPOCH_BUMP_VERSION: Final = 2
"""From this transaction version on every commit and abort raises the producer's epoch."""

_IS_TRANSACTIONAL: Final = 0x10


class StaleCoordinatorEpoch(OperatingError):
    """A marker from a transaction coordinator that was replaced."""

    def __init__(self, *, producer_id: ProducerId, ours: int, theirs: int) -> None:
        self.producer_id, self.ours, self.theirs = producer_id, ours, theirs
        super().__init__(f"producer {producer_id}: coordinator epoch {theirs} is below {ours}")


class Origin(Enum):
    """Where an append comes from, which decides how much is checked."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    """Our own coordinators: their batches have a producer's epoch but no sequences."""
    REPLICATION = "replication"
    """Followers and recovery: nothing is checked, the leader did."""


class ProducerBatch(NamedTuple):
    """A data batch with a producer id, offsets assigned; `last_offset` is inclusive."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    base_sequence: Sequence
    base_offset: Offset
    last_offset: Offset
    max_timestamp_ms: TimestampMs
    is_transactional: bool

    @classmethod
    def of_row(cls, walked: "array[int]", at: int) -> "ProducerBatch":
        """From the row that begins at index `at` of what the batch kernel walked."""
        # `_make` takes the numbers as they are; seven calls of id types would double the cost.
        return cls._make(
            (
                walked[at + PRODUCER_ID],
                walked[at + PRODUCER_EPOCH],
                walked[at + BASE_SEQUENCE],
                walked[at + BASE_OFFSET],
                walked[at + LAST_OFFSET],
                walked[at + MAX_TIMESTAMP],
                walked[at + ATTRIBUTES] & _IS_TRANSACTIONAL != 0,
            )
        )


class Duplicate(NamedTuple):
    """A batch that is in the log already, and its offsets: the response to the retry."""

    base_offset: Offset
    last_offset: Offset
    timestamp_ms: TimestampMs


class Marker(NamedTuple):
    """A control batch that ends a transaction."""

    producer_id: ProducerId
    epoch: ProducerEpoch
    coordinator_epoch: int
    is_commit: bool
    offset: Offset
    timestamp_ms: TimestampMs


class CompletedTransaction(NamedTuple):
    """A transaction that a marker ended; `last_offset` is the marker's."""

    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    is_aborted: bool
    last_stable_offset: Offset
    """Where the next undecided transaction begins, else the offset after the marker."""


KeptBatch = tuple[int, int, int, int, int]
"""First and last sequence, base and last offset, timestamp: plain, one is built per append."""
_KEPT_LAST_SEQUENCE: Final = 1
_KEPT_BASE_OFFSET: Final = 2


if TYPE_CHECKING:

    class ProducerEntry(slots.ProducerEntry):
        """The kernel's class, whose numbers are ids here."""

        producer_id: ProducerId
        epoch: ProducerEpoch
        last_timestamp_ms: TimestampMs
        transaction_first_offset: Offset

        @property
        def last_sequence(self) -> Sequence: ...
        @property
        def last_offset(self) -> Offset: ...

else:
    ProducerEntry = slots.ProducerEntry


class ProducerStates:
    """All producers of one partition and its undecided transactions."""

    __slots__ = ("_producers", "_undecided")

    def __init__(self) -> None:
        self._producers: dict[ProducerId, ProducerEntry] = {}
        self._undecided = UndecidedTransactions()

    def __len__(self) -> int:
        return len(self._producers)

    def get(self, producer_id: ProducerId) -> ProducerEntry | None:
        return self._producers.get(producer_id)

    @property
    def by_id(self) -> dict[ProducerId, ProducerEntry]:
        """The producers themselves, for the partition's slot; not to be changed."""
        return self._producers

    def entries(self) -> list[ProducerEntry]:
        """All producers, by id."""
        return [self._producers[producer_id] for producer_id in sorted(self._producers)]

    def has_open_transaction(self, producer_id: ProducerId, epoch: ProducerEpoch) -> bool:
        """Whether a batch of this epoch would continue a transaction rather than begin one."""
        entry = self._producers.get(producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == epoch

    # Batches

    def check(self, batch: ProducerBatch, origin: Origin) -> Duplicate | None:
        """None when the batch may be appended, a Duplicate when it was before (I-20).

        Raises StaleProducerEpoch, OutOfOrderSequence or InvalidTransactionState. A producer that
        is not known (it expired, or retention removed its batches) may begin at any sequence.
        """
        if origin is Origin.REPLICATION:
            return None
        is_client = origin is Origin.CLIENT
        if is_client and (batch.base_sequence < 0 or batch.epoch < 0):
            raise InvalidRecords(f"producer {batch.producer_id}: no sequence or no epoch")
        entry = self._producers.get(batch.producer_id)
        if entry is None:
            return None
        epoch, ours = batch.epoch, entry.epoch
        if epoch < ours:
            raise StaleProducerEpoch(producer_id=entry.producer_id, ours=ours, theirs=epoch)
        if is_client:
            kept = entry.batches if epoch == ours else ()
            # Newest first: a forgotten producer may have begun again with the same sequences.
            for known in reversed(kept):
                if known[0] == batch.base_sequence and _is_same_range(known, batch):
                    return Duplicate._make(known[_KEPT_BASE_OFFSET:])
            # 0 follows the highest sequence, begins an epoch, and comes after a marker that is
            # all that is known of its epoch.
            expected = (kept[-1][_KEPT_LAST_SEQUENCE] + 1) & SEQUENCE_MAX if kept else 0
            if batch.base_sequence != expected:
                raise OutOfOrderSequence(
                    f"producer {entry.producer_id}: sequence {batch.base_sequence} of epoch "
                    f"{epoch}, {expected} comes next"
                )
        if entry.transaction_first_offset >= 0 and not batch.is_transactional:
            raise InvalidTransactionState(
                f"producer {entry.producer_id}: batch outside its open transaction"
            )
        return None

    def apply(self, batch: ProducerBatch) -> None:
        """Follow a batch that is in the log."""
        (producer_id, epoch, base_sequence, base_offset, last_offset, timestamp_ms, is_in_txn) = (
            batch
        )
        entry = self._producers.get(producer_id)
        if entry is None:
            entry = self._producers[producer_id] = ProducerEntry(producer_id, epoch)
        elif entry.epoch != epoch:
            entry.start_epoch(epoch)
        # Spelled out because the mere call would cost a tenth of the whole.
        if base_offset <= entry.last_offset:
            invariant(False, "I-03 producer's batches out of order", batch=batch)
        last = entry.last_sequence
        if base_sequence >= 0 <= last and base_sequence != (last + 1) & SEQUENCE_MAX:
            # It was forgotten once and began again: older numbers mean other batches.
            entry.forget_batches()
        last_sequence = (
            (base_sequence + last_offset - base_offset) & SEQUENCE_MAX
            if base_sequence >= 0
            else NO_SEQUENCE
        )
        entry.keep(base_sequence, last_sequence, base_offset, last_offset, timestamp_ms)
        entry.last_timestamp_ms = timestamp_ms
        if is_in_txn and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = base_offset
            self._undecided.begin(base_offset)

    # Markers

    def check_marker(self, marker: Marker, *, transaction_version: int) -> None:
        """Raise StaleProducerEpoch or StaleCoordinatorEpoch for a marker that came too late.

        A marker ends only the transaction of its (producer id, epoch) (I-24). Since version 2 the
        coordinator raises the epoch with each marker, so a valid one is above the batches' epoch.
        An equal one is the same marker sent again, harmless as long as nothing is open. The
        highest epoch cannot be raised, so there the fencing abort has an equal one.
        """
        entry = self._producers.get(marker.producer_id)
        if entry is None:
            return
        is_stale = marker.epoch < entry.epoch
        if marker.epoch == entry.epoch and transaction_version >= EPOCH_BUMP_VERSION:
            is_open = entry.transaction_first_offset >= 0
            is_stale = is_open and marker.epoch != PRODUCER_EPOCH_MAX
        if is_stale:
            raise StaleProducerEpoch(
                producer_id=entry.producer_id, ours=entry.epoch, theirs=marker.epoch
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise StaleCoordinatorEpoch(
                producer_id=entry.producer_id,
                ours=entry.coordinator_epoch,
                theirs=marker.coordinator_epoch,
            )

    def apply_marker(self, marker: Marker) -> CompletedTransaction | None:
        """Follow a marker that is in the log; None when it ended nothing."""
        entry = self._producers.get(marker.producer_id)
        if entry is None:
            entry = ProducerEntry(marker.producer_id, marker.epoch)
            self._producers[marker.producer_id] = entry
        first_offset = entry.transaction_first_offset
        if entry.epoch != marker.epoch:
            entry.start_epoch(marker.epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = marker.timestamp_ms
        entry.transaction_first_offset = NO_OFFSET
        if first_offset < 0:
            return None
        invariant(marker.offset > first_offset, "I-24 a marker before its records", marker=marker)
        self._undecided.mark(first_offset, marker.offset)
        next_open = self._undecided.first_open
        return CompletedTransaction(
            marker.producer_id,
            first_offset,
            marker.offset,
            not marker.is_commit,
            Offset(marker.offset + 1) if next_open is None else next_open,
        )

    # What readers may see

    @property
    def first_undecided_offset(self) -> Offset | None:
        """Where the oldest transaction without a marker begins."""
        return self._undecided.first_open

    @property
    def first_unstable_offset(self) -> Offset | None:
        """As above, but a transaction is unstable until its marker is below the high watermark."""
        return self._undecided.first

    def last_stable_offset(self, *, log_start: Offset, high_watermark: Offset) -> Offset:
        """The offset up to which read_committed consumers may read (exclusive, I-07)."""
        if log_start > high_watermark:
            invariant(False, "I-05 log start beyond the high watermark")
        unstable = self._undecided.first
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, log_start)

    def on_high_watermark(self, high_watermark: Offset) -> None:
        """Forget the decided transactions whose markers every new leader will have."""
        self._undecided.release_below(high_watermark)

    # The log's ends

    def clear(self) -> None:
        """Forget everything, before a reload."""
        self._producers.clear()
        self._undecided.clear()

    def load(self, entry: ProducerEntry) -> None:
        """Take over one producer from a snapshot."""
        invariant(
            entry.producer_id not in self._producers,
            "I-20 a producer was loaded twice",
            producer_id=entry.producer_id,
        )
        self._producers[entry.producer_id] = entry
        if entry.transaction_first_offset >= 0:
            self._undecided.load(entry.transaction_first_offset)

    def expire(self, now_ms: TimestampMs, expiration_ms: int) -> int:
        """Forget producers that were idle too long, unless a transaction is open; how many."""
        expired = [
            entry.producer_id
            for entry in self._producers.values()
            if entry.transaction_first_offset < 0
            and now_ms - entry.last_timestamp_ms >= expiration_ms
        ]
        for producer_id in expired:
            del self._producers[producer_id]
        return len(expired)


def _is_same_range(known: KeptBatch, batch: ProducerBatch) -> bool:
    """Whether batches with the same first sequence also have the same last one."""
    delta = batch.last_offset - batch.base_offset
    return known[_KEPT_LAST_SEQUENCE] == (batch.base_sequence + delta) & SEQUENCE_MAX
