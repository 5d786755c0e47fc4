"""What a producer's entry settles on its own is what the whole machine would have said."""

from array import array
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.kernels.kernel_twins import twins
from millstream.kernels.batches import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_OFFSET,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    ROW_FIELDS,
)
from millstream.model.ids import ProducerId
from millstream.storage.producers import machine as producers
from millstream.storage.producers.machine import Origin, ProducerBatch, ProducerStates

TRANSACTIONAL, CONTROL = 0x10, 0x20
SEQUENCE_MAX = 2**31 - 1
PRODUCER = ProducerId(7)

known = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), max_size=7)
sequences = st.one_of(
    st.integers(-1, 14), st.sampled_from([SEQUENCE_MAX - 2, SEQUENCE_MAX - 1, SEQUENCE_MAX])
)


def row_of(sequence: int, count: int, *, epoch: int, base_offset: int, attributes: int) -> Any:
    row = array("q", [0] * ROW_FIELDS)
    row[PRODUCER_ID], row[PRODUCER_EPOCH], row[BASE_SEQUENCE] = PRODUCER, epoch, sequence
    row[BASE_OFFSET], row[LAST_OFFSET] = base_offset, base_offset + count - 1
    row[ATTRIBUTES], row[MAX_TIMESTAMP], row[RECORD_COUNT] = attributes, 5000 + base_offset, count
    return row


def states_of(kernel: Any, before: list[tuple[int, int]], last: int) -> ProducerStates:
    """A producer in epoch 3 that wrote these (sequence, count), the newest ending at `last`."""
    entry = kernel.ProducerEntry(PRODUCER, 3)
    offset = 100
    for number, (sequence, count) in enumerate(before):
        end = last if number == len(before) - 1 else sequence + count - 1
        entry.keep(sequence, end, offset, offset + count - 1, offset)
        offset += count
    states = ProducerStates()
    states.load(entry)
    return states


def facts(states: ProducerStates) -> tuple[Any, ...]:
    entry = states.get(PRODUCER)
    assert entry is not None
    numbers = (entry.epoch, entry.last_timestamp_ms, entry.transaction_first_offset)
    return (*numbers, entry.batches, states.first_undecided_offset)


@pytest.mark.parametrize("kernel", twins("slots"))
@given(
    before=known,
    last=sequences,
    sequence=sequences,
    count=st.integers(1, 4),
    is_in_order=st.booleans(),
    epoch=st.sampled_from([3, 3, 3, 3, -1, 2, 4]),
    base_offset=st.one_of(st.just(140), st.integers(95, 140)),
    attributes=st.sampled_from([0, 0, 3, TRANSACTIONAL, CONTROL, CONTROL | TRANSACTIONAL]),
    transaction_first=st.sampled_from([-1, 90]),
)
@settings(max_examples=400, deadline=None)
def test_an_entry_says_what_the_machine_says(
    kernel: Any,
    before: list[tuple[int, int]],
    last: int,
    sequence: int,
    count: int,
    is_in_order: bool,
    epoch: int,
    base_offset: int,
    attributes: int,
    transaction_first: int,
) -> None:
    """I-20, I-24."""
    if is_in_order:
        sequence = (last + 1) & SEQUENCE_MAX if before else 0
    row = row_of(sequence, count, epoch=epoch, base_offset=base_offset, attributes=attributes)
    rows = array("q", [0] * ROW_FIELDS) + row  # not the first one
    with mock.patch.object(producers, "ProducerEntry", kernel.ProducerEntry):
        short, long = (states_of(kernel, before, last) for _ in range(2))
        for states in (short, long):
            entry = states.get(PRODUCER)
            assert entry is not None
            entry.transaction_first_offset = transaction_first  # type: ignore[assignment]
        entry = short.get(PRODUCER)
        assert entry is not None
        unchanged = facts(short)
        if entry.is_next(rows, ROW_FIELDS):
            for origin in Origin:
                assert long.check(ProducerBatch.of_row(row, 0), origin) is None
        assert facts(short) == unchanged
        if entry.take(rows, ROW_FIELDS):
            assert not attributes & CONTROL
            long.apply(ProducerBatch.of_row(row, 0))
        assert facts(short) == facts(long)


@pytest.mark.parametrize("kernel", twins("slots"))
def test_the_next_batch_needs_no_machine(kernel: Any) -> None:
    """The other half: a short cut that nobody could take would pass the test above."""
    entry = kernel.ProducerEntry(PRODUCER, 3)
    for number in range(8):
        row = row_of(number * 2, 2, epoch=3, base_offset=number * 2, attributes=0)
        assert entry.is_next(row, 0)
        assert entry.take(row, 0)
        assert not entry.is_next(row, 0)
    assert entry.last_timestamp_ms == 5014
    wrapped = kernel.ProducerEntry(PRODUCER, 3)
    assert wrapped.take(row_of(SEQUENCE_MAX - 1, 3, epoch=3, base_offset=0, attributes=0), 0)
    assert wrapped.last_sequence == 0
    assert wrapped.is_next(row_of(1, 1, epoch=3, base_offset=9, attributes=0), 0)


@pytest.mark.parametrize("kernel", twins("slots"))
@pytest.mark.parametrize("at", [-1, 1, ROW_FIELDS])
def test_a_row_must_be_there(kernel: Any, at: int) -> None:
    entry = kernel.ProducerEntry(PRODUCER, 3)
    row = row_of(0, 1, epoch=3, base_offset=0, attributes=0)
    for ask in (entry.is_next, entry.take):
        with pytest.raises(ValueError, match="whole row"):
            ask(row, at)
