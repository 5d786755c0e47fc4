"""Producer snapshots: Kafka's bytes both ways, and no belief in damaged ones."""

from struct import pack

import pytest
from crc32c import crc32c

from millstream.model.errors import OutOfOrderSequence, StaleProducerEpoch
from millstream.model.ids import Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs
from millstream.storage.producers.machine import (
    Duplicate,
    Marker,
    Origin,
    ProducerBatch,
    ProducerStates,
)
from millstream.storage.producers.snapshot import CorruptSnapshot, decode, encode

END = Offset(105)
# Kafka 4.3.1's ProducerStateManager.writeSnapshot: producer 7 with epoch 3, sequences 5..9 at
# offsets 100..104, coordinator epoch 5 and a transaction open since 95; producer 4000 known by a
# marker alone.
KAFKA_BYTES = bytes.fromhex(
    "0001e3addc1600000002"
    "00000000000000070003000000090000000000000068000000040000011f71fb04cb"
    "00000005000000000000005f"
    "0000000000000fa00000ffffffffffffffffffffffff00000000000000000000002a"
    "ffffffffffffffffffffffff"
)


def batch(
    sequence: int, base: int, last: int, *, producer: int = 7, epoch: int = 3, txn: bool = True
) -> ProducerBatch:
    ids = ProducerId(producer), ProducerEpoch(epoch), Sequence(sequence)
    return ProducerBatch(*ids, Offset(base), Offset(last), TimestampMs(1234567890123), txn)


def kafka_states() -> ProducerStates:
    states = ProducerStates()
    marker = Marker(ProducerId(7), ProducerEpoch(3), 5, True, Offset(90), TimestampMs(1))
    states.apply_marker(marker)
    states.apply(batch(0, 95, 99))
    states.apply(batch(5, 100, 104))
    other = Marker(ProducerId(4000), ProducerEpoch(0), -1, True, Offset(91), TimestampMs(42))
    states.apply_marker(other)
    return states


def snapshot_of(*rows: tuple[int, ...], count: int | None = None) -> bytes:
    body = pack(">i", len(rows) if count is None else count)
    body += b"".join(pack(">qhiqiqiq", *row) for row in rows)
    return pack(">hI", 1, crc32c(body)) + body


def test_bytes_are_those_that_kafka_writes() -> None:
    assert encode(kafka_states()) == KAFKA_BYTES


def test_what_kafka_wrote_is_understood() -> None:
    states = decode(KAFKA_BYTES, end_offset=END)
    first, second = states.entries()
    assert (first.producer_id, first.epoch, first.coordinator_epoch) == (7, 3, 5)
    assert first.batches == [(5, 9, 100, 104, 1234567890123)]
    assert first.last_timestamp_ms == 1234567890123
    assert first.transaction_first_offset == 95
    assert (second.producer_id, second.batches, second.last_timestamp_ms) == (4000, [], 42)
    assert states.first_undecided_offset == 95
    assert encode(states) == KAFKA_BYTES


def test_restored_state_keeps_the_promises() -> None:
    """I-20, I-21 after a restart: a retry of the last batch, a zombie, a gap, the next batch."""
    states = decode(KAFKA_BYTES, end_offset=END)
    found = states.check(batch(5, 105, 109), Origin.CLIENT)
    assert found == Duplicate(Offset(100), Offset(104), TimestampMs(1234567890123))
    with pytest.raises(StaleProducerEpoch):
        states.check(batch(0, 105, 109, epoch=2), Origin.CLIENT)
    with pytest.raises(OutOfOrderSequence):
        # Only the last batch is in the format: refused, never stored a second time.
        states.check(batch(0, 105, 109), Origin.CLIENT)
    assert states.check(batch(10, 105, 109), Origin.CLIENT) is None


def test_batch_over_the_wrap_of_sequences_survives() -> None:
    states = ProducerStates()
    states.apply(batch(2**31 - 2, 10, 13))
    restored = decode(encode(states), end_offset=Offset(14)).get(ProducerId(7))
    assert restored is not None
    assert restored.batches == [(2**31 - 2, 1, 10, 13, 1234567890123)]


def test_batch_without_sequences_survives() -> None:
    """Those of our own coordinators."""
    states = ProducerStates()
    states.apply(batch(-1, 10, 13))
    restored = decode(encode(states), end_offset=Offset(14)).get(ProducerId(7))
    assert restored is not None
    assert restored.batches == [(-1, -1, 10, 13, 1234567890123)]


def test_no_producers_is_a_valid_snapshot() -> None:
    raw = encode(ProducerStates())
    assert len(raw) == 10
    assert len(decode(raw, end_offset=Offset(0))) == 0


def test_open_transactions_are_restored_in_offset_order() -> None:
    states = ProducerStates()
    for number, producer in enumerate((9, 3, 7, 1)):
        states.apply(batch(0, number, number, producer=producer))
    restored = decode(encode(states), end_offset=Offset(4))
    firsts = []
    for offset, producer in enumerate((9, 3, 7, 1), start=10):
        firsts.append(restored.first_undecided_offset)
        marker_at, timestamp = Offset(offset), TimestampMs(0)
        restored.apply_marker(
            Marker(ProducerId(producer), ProducerEpoch(3), 0, True, marker_at, timestamp)
        )
    assert firsts == [0, 1, 2, 3]


def test_every_cut_is_refused() -> None:
    for size in range(len(KAFKA_BYTES)):
        with pytest.raises(CorruptSnapshot):
            decode(KAFKA_BYTES[:size], end_offset=END)


def test_every_flipped_byte_is_refused() -> None:
    for at in range(len(KAFKA_BYTES)):
        for mask in (0x01, 0x80, 0xFF):
            damaged = bytearray(KAFKA_BYTES)
            damaged[at] ^= mask
            with pytest.raises(CorruptSnapshot):
                decode(bytes(damaged), end_offset=END)


def test_bytes_after_the_end_are_refused() -> None:
    with pytest.raises(CorruptSnapshot):
        decode(KAFKA_BYTES + b"\0", end_offset=END)


GOOD = (7, 3, 9, 104, 4, 42, 5, 95)


@pytest.mark.parametrize(
    "raw",
    [
        snapshot_of(GOOD, count=-1),
        snapshot_of(GOOD, count=0),
        snapshot_of(GOOD, count=2),
        snapshot_of(GOOD, count=2**31 - 1),
        snapshot_of(GOOD, GOOD),
        snapshot_of(GOOD, (8, *GOOD[1:])),  # two transactions cannot begin at one offset
        snapshot_of((-1, *GOOD[1:])),
        snapshot_of((7, 3, 9, 105, 4, 42, 5, 95)),  # beyond the end of the log
        snapshot_of((7, 3, 9, 104, 4, 42, 5, 105)),
        snapshot_of((7, 3, 9, -2, 4, 42, 5, 95)),
        snapshot_of((7, 3, 9, 104, -1, 42, 5, 95)),
        snapshot_of((7, 3, 9, 104, 105, 42, 5, 95)),
    ],
)
def test_content_that_cannot_be_true_is_refused_though_its_crc_is_right(raw: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        decode(raw, end_offset=END)


def test_the_helper_of_these_tests_builds_what_is_accepted() -> None:
    assert len(decode(snapshot_of(GOOD, (8, *GOOD[1:-1], -1)), end_offset=END)) == 2
