"""The producer machine, rule by rule: idempotence, epochs, transactions, what readers may see."""

from array import array

import pytest

from millstream.model.errors import (
    InvalidRecords,
    InvalidTransactionState,
    OutOfOrderSequence,
    StaleProducerEpoch,
)
from millstream.model.ids import Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs
from millstream.model.invariant import InvariantViolated
from millstream.storage.producers.machine import (
    SEQUENCE_MAX,
    CompletedTransaction,
    Duplicate,
    Marker,
    Origin,
    ProducerBatch,
    ProducerStates,
    StaleCoordinatorEpoch,
)

P, Q, R = ProducerId(7), ProducerId(8), ProducerId(9)
EPOCH_MAX = 2**15 - 1


class Partition:
    """A log of offsets only: checks, then applies at the end, as a leader does."""

    def __init__(self) -> None:
        self.states = ProducerStates()
        self.end = 0

    def batch(
        self, producer: ProducerId, epoch: int, sequence: int, *, count: int = 1, txn: bool = False
    ) -> ProducerBatch:
        return ProducerBatch(
            producer,
            ProducerEpoch(epoch),
            Sequence(sequence),
            Offset(self.end),
            Offset(self.end + count - 1),
            TimestampMs(1000 + self.end),
            txn,
        )

    def send(
        self, producer: ProducerId, epoch: int, sequence: int, *, count: int = 1, txn: bool = False
    ) -> int | Duplicate:
        """The base offset the batch got, or where it was already."""
        batch = self.batch(producer, epoch, sequence, count=count, txn=txn)
        duplicate = self.states.check(batch, Origin.CLIENT)
        if duplicate is not None:
            return duplicate
        self.states.apply(batch)
        self.end += count
        return batch.base_offset

    def end_txn(
        self,
        producer: ProducerId,
        epoch: int,
        *,
        commit: bool = True,
        coordinator: int = 1,
        version: int = 1,
    ) -> CompletedTransaction | None:
        timestamp = TimestampMs(1000 + self.end)
        offset, producer_epoch = Offset(self.end), ProducerEpoch(epoch)
        marker = Marker(producer, producer_epoch, coordinator, commit, offset, timestamp)
        self.states.check_marker(marker, transaction_version=version)
        self.end += 1
        return self.states.apply_marker(marker)

    def stable(self, high_watermark: int, log_start: int = 0) -> int:
        return self.states.last_stable_offset(
            log_start=Offset(log_start), high_watermark=Offset(high_watermark)
        )


# Sequences


def test_batches_in_sequence_are_accepted() -> None:
    log = Partition()
    assert [log.send(P, 0, 0, count=3), log.send(P, 0, 3), log.send(P, 0, 4, count=2)] == [0, 3, 4]


@pytest.mark.parametrize("sequence", [0, 1, 17, SEQUENCE_MAX])
def test_an_unknown_producer_may_begin_anywhere(sequence: int) -> None:
    """Its batches may have gone with retention, or it idled away: refusing would stop it."""
    log = Partition()
    assert log.send(P, 5, sequence) == 0
    assert log.send(P, 5, (sequence + 1) & SEQUENCE_MAX) == 1


@pytest.mark.parametrize("sequence", [1, 2, 4, 9])
def test_a_gap_or_a_half_overlap_is_refused(sequence: int) -> None:
    log = Partition()
    log.send(P, 0, 0, count=3)
    with pytest.raises(OutOfOrderSequence, match="3 comes next"):
        log.send(P, 0, sequence, count=3)
    assert log.send(P, 0, 3) == 3


def test_sequences_wrap_to_zero_after_the_highest() -> None:
    log = Partition()
    log.send(P, 0, SEQUENCE_MAX - 1, count=2)
    with pytest.raises(OutOfOrderSequence):
        log.send(P, 0, 1)
    assert log.send(P, 0, 0) == 2


def test_a_batch_may_span_the_wrap_and_is_still_known_when_it_comes_again() -> None:
    log = Partition()
    log.send(P, 0, SEQUENCE_MAX - 1, count=5)  # sequences MAX - 1, MAX, 0, 1, 2
    assert log.send(P, 0, 3) == 5
    found = log.send(P, 0, SEQUENCE_MAX - 1, count=5)
    assert isinstance(found, Duplicate)
    assert (found.base_offset, found.last_offset) == (0, 4)


def test_producers_do_not_mix() -> None:
    log = Partition()
    log.send(P, 0, 0, count=5)
    log.send(Q, 3, 0)
    assert log.send(P, 0, 5) == 6
    assert log.send(Q, 3, 1) == 7


@pytest.mark.parametrize(("epoch", "sequence"), [(0, -1), (-1, 0)])
def test_a_client_must_send_sequence_and_epoch(epoch: int, sequence: int) -> None:
    log = Partition()
    with pytest.raises(InvalidRecords):
        log.send(P, epoch, sequence)


# Duplicates


def test_a_retry_of_each_of_the_last_five_batches_gets_its_original_offset() -> None:
    """I-20. In any order, any number of times, and without moving the sequence."""
    log = Partition()
    counts = [3, 1, 4, 1, 5, 9]
    sequences = [sum(counts[:number]) for number in range(6)]
    for sequence, count in zip(sequences, counts, strict=True):
        log.send(P, 0, sequence, count=count)
    for number in (5, 1, 3, 2, 4, 1):
        base = sequences[number]
        expected = Duplicate(
            Offset(base), Offset(base + counts[number] - 1), TimestampMs(1000 + base)
        )
        assert log.send(P, 0, base, count=counts[number]) == expected
    assert log.send(P, 0, sum(counts)) == sum(counts)


def test_a_retry_older_than_five_batches_is_out_of_order_not_stored_again() -> None:
    """I-20. What is no longer known must not look new."""
    log = Partition()
    for sequence in range(6):
        log.send(P, 0, sequence)
    with pytest.raises(OutOfOrderSequence):
        log.send(P, 0, 0)
    assert log.end == 6


def test_a_retry_must_match_both_ends() -> None:
    log = Partition()
    log.send(P, 0, 0, count=3)
    with pytest.raises(OutOfOrderSequence):
        log.send(P, 0, 0, count=2)
    with pytest.raises(OutOfOrderSequence):
        log.send(P, 0, 0, count=4)


# Epochs


def test_an_old_epoch_is_refused_even_for_what_was_once_accepted() -> None:
    """I-21. A zombie's retry is not answered as a duplicate either."""
    log = Partition()
    log.send(P, 3, 0)
    log.send(P, 4, 0)
    for sequence in (0, 1):
        with pytest.raises(StaleProducerEpoch) as caught:
            log.send(P, 3, sequence)
    assert (caught.value.ours, caught.value.theirs) == (4, 3)


def test_a_new_epoch_begins_at_sequence_zero() -> None:
    log = Partition()
    log.send(P, 0, 0, count=4)
    with pytest.raises(OutOfOrderSequence, match="0 comes next"):
        log.send(P, 1, 4)
    assert log.send(P, 1, 0, count=4) == 4  # not a duplicate of epoch 0's batch
    assert log.send(P, 1, 4) == 8


# Origins


def test_coordinators_send_no_sequences_but_their_epoch_counts() -> None:
    log = Partition()
    log.send(P, 2, 0)
    batch = log.batch(P, 2, -1)
    assert log.states.check(batch, Origin.COORDINATOR) is None
    log.states.apply(batch)
    assert log.states.check(log.batch(P, 3, -1), Origin.COORDINATOR) is None
    with pytest.raises(StaleProducerEpoch):
        log.states.check(log.batch(P, 1, -1), Origin.COORDINATOR)


def test_a_coordinators_batch_in_between_hides_no_duplicate() -> None:
    """Offsets committed in a transaction come without sequences, under the same producer id."""
    log = Partition()
    log.send(P, 0, 0, count=2, txn=True)
    batch = log.batch(P, 0, -1, txn=True)
    assert log.states.check(batch, Origin.COORDINATOR) is None
    log.states.apply(batch)
    log.end += 1
    assert log.send(P, 0, 0, count=2, txn=True) == (0, 1, 1000)


def test_replication_and_recovery_follow_whatever_the_log_says() -> None:
    log = Partition()
    log.send(P, 5, 0)
    batch = log.batch(P, 3, 17)
    assert log.states.check(batch, Origin.REPLICATION) is None
    log.states.apply(batch)
    entry = log.states.get(P)
    assert entry is not None
    assert (entry.epoch, entry.last_sequence, entry.last_offset) == (3, 17, 1)


def test_batches_are_applied_in_offset_order() -> None:
    log = Partition()
    log.send(P, 0, 0, count=2)
    with pytest.raises(InvariantViolated, match="I-03"):
        log.states.apply(log.batch(P, 0, 2)._replace(base_offset=Offset(1)))


# Transactions


def test_commit_and_abort_tell_what_they_ended() -> None:
    log = Partition()
    log.send(P, 0, 0, count=2, txn=True)
    log.send(P, 0, 2, txn=True)
    assert log.states.has_open_transaction(P, ProducerEpoch(0))
    assert log.end_txn(P, 0) == (P, 0, 3, False, 4)
    assert not log.states.has_open_transaction(P, ProducerEpoch(0))
    log.send(P, 0, 3, txn=True)
    assert log.end_txn(P, 0, commit=False) == (P, 4, 5, True, 6)


def test_a_marker_without_records_ends_nothing() -> None:
    log = Partition()
    assert log.end_txn(P, 0) is None
    assert log.states.first_unstable_offset is None


def test_a_plain_batch_inside_a_transaction_is_refused() -> None:
    log = Partition()
    log.send(P, 0, 0, txn=True)
    for epoch, sequence in ((0, 1), (1, 0)):
        with pytest.raises(InvalidTransactionState):
            log.send(P, epoch, sequence)
    assert log.send(P, 0, 1, txn=True) == 1


def test_an_open_transaction_of_another_epoch_is_not_continued_unasked() -> None:
    """KIP-890: a batch of a newer epoch is verified with the coordinator first."""
    log = Partition()
    log.send(P, 0, 0, txn=True)
    assert not log.states.has_open_transaction(P, ProducerEpoch(1))
    assert not log.states.has_open_transaction(Q, ProducerEpoch(0))


def test_after_a_marker_of_the_same_epoch_sequences_go_on() -> None:
    log = Partition()
    log.send(P, 0, 0, count=2, txn=True)
    log.end_txn(P, 0)
    assert isinstance(log.send(P, 0, 0, count=2, txn=True), Duplicate)
    assert log.send(P, 0, 2, txn=True) == 3


def test_after_a_marker_that_raised_the_epoch_sequences_begin_at_zero() -> None:
    log = Partition()
    log.send(P, 0, 0, count=2, txn=True)
    assert log.end_txn(P, 1, version=2) == (P, 0, 2, False, 3)
    with pytest.raises(OutOfOrderSequence):
        log.send(P, 1, 2, txn=True)
    with pytest.raises(StaleProducerEpoch):
        log.send(P, 0, 2, txn=True)
    assert log.send(P, 1, 0, txn=True) == 3


def test_a_producer_known_by_a_marker_alone_begins_at_zero() -> None:
    log = Partition()
    log.end_txn(P, 4)
    with pytest.raises(OutOfOrderSequence):
        log.send(P, 4, 3)
    assert log.send(P, 4, 0) == 1


# Markers that come too late


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_marker_of_an_older_epoch_is_refused(version: int) -> None:
    """I-24."""
    log = Partition()
    log.send(P, 3, 0, txn=True)
    with pytest.raises(StaleProducerEpoch):
        log.end_txn(P, 2, version=version)
    assert log.states.first_undecided_offset == 0


def test_a_marker_sent_again_never_ends_the_next_transaction() -> None:
    """I-24, KAFKA-17754: with the epoch raised per transaction the late duplicate is recognized."""
    log = Partition()
    log.send(P, 0, 0, txn=True)
    log.end_txn(P, 1, version=2)
    assert log.end_txn(P, 1, version=2) is None  # nothing is open: a harmless repetition
    log.send(P, 1, 0, txn=True)
    with pytest.raises(StaleProducerEpoch):
        log.end_txn(P, 1, version=2, commit=False)
    assert log.states.first_undecided_offset == 3
    assert log.end_txn(P, 2, version=2) == (P, 3, 4, False, 5)


def test_before_version_two_markers_carry_the_epoch_of_their_batches() -> None:
    log = Partition()
    log.send(P, 1, 0, txn=True)
    assert log.end_txn(P, 1, version=1) is not None


def test_at_the_highest_epoch_an_equal_marker_ends_the_transaction() -> None:
    """The epoch cannot be raised any more; refusing would leave it open forever."""
    log = Partition()
    log.send(P, EPOCH_MAX, 0, txn=True)
    assert log.end_txn(P, EPOCH_MAX, version=2, commit=False) is not None


def test_a_replaced_coordinator_is_fenced() -> None:
    log = Partition()
    log.send(P, 0, 0, txn=True)
    log.end_txn(P, 0, coordinator=5)
    log.send(P, 0, 1, txn=True)
    with pytest.raises(StaleCoordinatorEpoch) as caught:
        log.end_txn(P, 0, coordinator=4)
    assert (caught.value.ours, caught.value.theirs) == (5, 4)
    assert log.end_txn(P, 0, coordinator=5) is not None


# What readers may see


def test_readers_stop_at_the_oldest_undecided_transaction() -> None:
    """I-07, I-23."""
    log = Partition()
    log.send(P, 0, 0, count=10)
    log.send(Q, 0, 0, count=5, txn=True)  # 10..14
    log.send(R, 0, 0, count=5, txn=True)  # 15..19
    assert (log.stable(20), log.stable(12), log.stable(5)) == (10, 10, 5)
    done = log.end_txn(R, 0)  # marker 20, Q is still open
    assert done is not None
    assert done.last_stable_offset == 10
    assert log.stable(21) == 10
    done = log.end_txn(Q, 0)  # marker 21
    assert done is not None
    assert done.last_stable_offset == 22


def test_a_decided_transaction_counts_until_its_marker_is_replicated() -> None:
    """A new leader may lack the marker; what it decides later could differ from what was read."""
    log = Partition()
    log.send(P, 0, 0, count=5, txn=True)
    log.end_txn(P, 0)  # marker 5
    assert log.states.first_undecided_offset is None
    assert log.states.first_unstable_offset == 0
    log.states.on_high_watermark(Offset(5))
    assert log.stable(5) == 0
    log.states.on_high_watermark(Offset(6))
    assert log.stable(6) == 6


def test_markers_in_another_order_than_the_transactions_began() -> None:
    log = Partition()
    log.send(P, 0, 0, txn=True)  # 0
    log.send(Q, 0, 0, txn=True)  # 1
    log.end_txn(Q, 0)  # 2
    log.end_txn(P, 0)  # 3
    log.states.on_high_watermark(Offset(3))  # Q's marker is replicated, P's is not
    assert log.states.first_unstable_offset == 0
    log.states.on_high_watermark(Offset(4))
    assert log.states.first_unstable_offset is None


def test_stable_offset_is_never_below_the_log_start() -> None:
    """I-05: DeleteRecords may cut into an open transaction."""
    log = Partition()
    log.send(P, 0, 0, count=5, txn=True)
    assert log.stable(5, log_start=3) == 3
    log.end_txn(P, 0)
    with pytest.raises(InvariantViolated, match="I-05"):
        log.stable(5, log_start=6)


# Life and death


def test_idle_producers_expire_but_not_with_an_open_transaction() -> None:
    log = Partition()
    log.send(P, 0, 0)  # at 1000
    log.send(Q, 0, 0, txn=True)  # at 1001
    log.send(R, 0, 0)  # at 1002
    assert log.states.expire(TimestampMs(1500), 499) == 1  # P and Q are old enough, R is not
    assert [entry.producer_id for entry in log.states.entries()] == [Q, R]
    assert log.send(P, 0, 99) == 3  # unknown again


def test_a_marker_renews_its_producer() -> None:
    """KAFKA-9144: else the coordinator's epoch would be forgotten too early."""
    log = Partition()
    log.send(P, 0, 0, txn=True)
    log.end = 500
    log.end_txn(P, 0)  # at 1500
    assert log.states.expire(TimestampMs(1900), 500) == 0
    assert log.states.expire(TimestampMs(2000), 500) == 1


def test_a_batch_is_read_from_the_kernels_row() -> None:
    row = [0, 0, 100, 104, 3, 0x10, 5, 9, 7, 2, 40, 5]
    rows = array("q", [-1] * 12 + row)
    assert ProducerBatch.of_row(rows, 12) == (7, 2, 40, 100, 104, 9, True)
    rows[12 + 5] = 0x01
    assert not ProducerBatch.of_row(rows, 12).is_transactional


def test_a_forgotten_producer_that_began_anew_is_not_taken_for_its_former_self() -> None:
    """Replay below the log start can find batches of its first life: their numbers are void."""
    states = ProducerStates()
    first, again, new = (
        ProducerBatch(
            ProducerId(7),
            ProducerEpoch(0),
            Sequence(sequence),
            Offset(offset),
            Offset(last),
            TimestampMs(1),
            is_transactional=False,
        )
        for sequence, offset, last in ((3, 11, 11), (0, 19, 21), (3, 27, 27))
    )
    states.apply(first)
    states.apply(again)
    assert states.check(new, Origin.CLIENT) is None
