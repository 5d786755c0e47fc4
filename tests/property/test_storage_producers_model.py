"""The producer machine against a model that remembers everything and computes by looking back.

The model keeps the list of all batches and markers ever written. Each answer is derived from that
list by its definition, not by bookkeeping: the last five batches of the producer's current epoch,
the first transactional batch after its last marker, and so on.
"""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.model.errors import (
    InvalidTransactionState,
    OperatingError,
    OutOfOrderSequence,
    StaleProducerEpoch,
)
from millstream.model.ids import Offset, ProducerEpoch, ProducerId, Sequence, TimestampMs
from millstream.storage.producers import snapshot as producer_snapshot
from millstream.storage.producers.machine import (
    Marker,
    Origin,
    ProducerBatch,
    ProducerStates,
    StaleCoordinatorEpoch,
)

MODULO = 2**31
PRODUCERS = st.integers(1, 3).map(ProducerId)


@dataclass
class Model:
    """Everything that was ever written, and what a reload of a snapshot made us forget."""

    written: list[ProducerBatch | Marker] = field(default_factory=list)
    forgotten: set[Offset] = field(default_factory=set)
    """Base offsets of batches that the snapshot format has no room for."""
    high_watermark: int = 0
    reloaded_at: int = 0
    """Decided transactions with markers before this offset do not survive a snapshot."""

    def of(self, producer: ProducerId) -> list[ProducerBatch | Marker]:
        return [item for item in self.written if item.producer_id == producer]

    def epoch(self, producer: ProducerId) -> int:
        items = self.of(producer)
        return items[-1].epoch if items else -1

    def known_batches(self, producer: ProducerId) -> list[ProducerBatch]:
        """The last five of the current epoch, oldest first."""
        run: list[ProducerBatch] = []
        for item in reversed(self.of(producer)):
            if item.epoch != self.epoch(producer):
                break
            if isinstance(item, ProducerBatch) and item.base_offset not in self.forgotten:
                run.append(item)
        return run[:5][::-1]

    def stamp_newest(self) -> None:
        """A snapshot has one timestamp per producer: that of its newest batch or marker."""
        for number in range(1, 4):
            items = self.of(ProducerId(number))
            for batch in self.known_batches(ProducerId(number))[-1:]:
                newest = items[-1]
                stamp = (
                    newest.timestamp_ms if isinstance(newest, Marker) else newest.max_timestamp_ms
                )
                at = self.written.index(batch)
                self.written[at] = batch._replace(max_timestamp_ms=stamp)

    def next_sequence(self, producer: ProducerId) -> int:
        known = self.known_batches(producer)
        return (last_sequence(known[-1]) + 1) % MODULO if known else 0

    def coordinator_epoch(self, producer: ProducerId) -> int:
        markers = [item for item in self.of(producer) if isinstance(item, Marker)]
        return markers[-1].coordinator_epoch if markers else -1

    def transactions(self) -> list[tuple[ProducerId, Offset, Offset | None]]:
        """(producer, first offset, marker's offset if there is one), in order of completion."""
        found: list[tuple[ProducerId, Offset, Offset | None]] = []
        first: dict[ProducerId, Offset] = {}
        for item in self.written:
            if isinstance(item, Marker):
                if item.producer_id in first:
                    found.append((item.producer_id, first.pop(item.producer_id), item.offset))
            elif item.is_transactional:
                first.setdefault(item.producer_id, item.base_offset)
        return found + [(producer, offset, None) for producer, offset in first.items()]

    def open_first(self, producer: ProducerId) -> Offset | None:
        open_ones = (t for t in self.transactions() if t[0] == producer and t[2] is None)
        return next((first for _, first, _ in open_ones), None)

    def first_unstable(self) -> Offset | None:
        unstable = [
            first
            for _, first, marker in self.transactions()
            if marker is None or marker >= max(self.high_watermark, self.reloaded_at)
        ]
        return min(unstable, default=None)

    def verdict(self, batch: ProducerBatch) -> type[OperatingError] | ProducerBatch | None:
        """An error, the stored batch of which this is a retry, or None for a new one."""
        producer = batch.producer_id
        if not self.of(producer):
            return None
        if batch.epoch < self.epoch(producer):
            return StaleProducerEpoch
        if batch.epoch == self.epoch(producer):
            for known in self.known_batches(producer):
                same_first = known.base_sequence == batch.base_sequence
                if same_first and last_sequence(known) == last_sequence(batch):
                    return known
            if batch.base_sequence != self.next_sequence(producer):
                return OutOfOrderSequence
        elif batch.base_sequence != 0:
            return OutOfOrderSequence
        if self.open_first(producer) is not None and not batch.is_transactional:
            return InvalidTransactionState
        return None

    def marker_verdict(self, marker: Marker, version: int) -> type[OperatingError] | None:
        current = self.epoch(marker.producer_id)
        if marker.epoch < current:
            return StaleProducerEpoch
        is_open = self.open_first(marker.producer_id) is not None
        if version >= 2 and marker.epoch == current and is_open:
            return StaleProducerEpoch
        if marker.coordinator_epoch < self.coordinator_epoch(marker.producer_id):
            return StaleCoordinatorEpoch
        return None


def last_sequence(batch: ProducerBatch) -> int:
    return (batch.base_sequence + batch.last_offset - batch.base_offset) % MODULO


class ProducerMachine(RuleBasedStateMachine):
    """Drives both and compares every answer."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStates()
        self.model = Model()
        self.end = 0
        self.stored: set[tuple[int, int, int]] = set()

    def send(
        self, producer: ProducerId, epoch: int, sequence: int, count: int, *, txn: bool
    ) -> None:
        batch = ProducerBatch(
            producer,
            ProducerEpoch(epoch),
            Sequence(sequence % MODULO),
            Offset(self.end),
            Offset(self.end + count - 1),
            TimestampMs(self.end),
            txn,
        )
        expected = self.model.verdict(batch)
        if isinstance(expected, type):
            with pytest.raises(expected):
                self.states.check(batch, Origin.CLIENT)
            return
        found = self.states.check(batch, Origin.CLIENT)
        if isinstance(expected, ProducerBatch):
            assert found == (expected.base_offset, expected.last_offset, expected.max_timestamp_ms)
            return
        assert found is None
        self.store(batch)

    def store(self, batch: ProducerBatch) -> None:
        for offset in range(batch.last_offset - batch.base_offset + 1):
            key = (batch.producer_id, batch.epoch, (batch.base_sequence + offset) % MODULO)
            assert key not in self.stored, "I-20 stored twice"
            self.stored.add(key)
        self.states.apply(batch)
        self.model.written.append(batch)
        self.end = batch.last_offset + 1

    @rule(producer=PRODUCERS, count=st.integers(1, 3), txn=st.booleans())
    def send_next(self, producer: ProducerId, count: int, txn: bool) -> None:
        epoch = max(self.model.epoch(producer), 0)
        self.send(producer, epoch, self.model.next_sequence(producer), count, txn=txn)

    @rule(producer=PRODUCERS, data=st.data(), count=st.integers(1, 3))
    def send_retry(self, producer: ProducerId, data: st.DataObject, count: int) -> None:
        sent = [item for item in self.model.of(producer) if isinstance(item, ProducerBatch)]
        if sent:
            old = data.draw(st.sampled_from(sent[-8:]))
            old_count = old.last_offset - old.base_offset + 1
            size = data.draw(st.sampled_from([old_count, old_count, count]))
            self.send(producer, old.epoch, old.base_sequence, size, txn=old.is_transactional)

    @rule(
        producer=PRODUCERS,
        raised=st.integers(-1, 1),
        sequence=st.sampled_from([0, 1, 2, 5, MODULO - 2, MODULO - 1]),
        count=st.integers(1, 4),
        txn=st.booleans(),
    )
    def send_anything(
        self, producer: ProducerId, raised: int, sequence: int, count: int, txn: bool
    ) -> None:
        epoch = max(self.model.epoch(producer) + raised, 0)
        self.send(producer, epoch, sequence, count, txn=txn)

    @rule(
        producer=PRODUCERS,
        raised=st.sampled_from([0, 0, 1, 1, -1]),
        coordinator=st.integers(0, 3),
        version=st.integers(1, 2),
        is_commit=st.booleans(),
    )
    def end_transaction(
        self, producer: ProducerId, raised: int, coordinator: int, version: int, is_commit: bool
    ) -> None:
        epoch = ProducerEpoch(max(self.model.epoch(producer) + raised, 0))
        offset, timestamp = Offset(self.end), TimestampMs(self.end)
        marker = Marker(producer, epoch, coordinator, is_commit, offset, timestamp)
        expected = self.model.marker_verdict(marker, version)
        if expected is not None:
            with pytest.raises(expected):
                self.states.check_marker(marker, transaction_version=version)
            return
        self.states.check_marker(marker, transaction_version=version)
        first = self.model.open_first(producer)
        completed = self.states.apply_marker(marker)
        self.model.written.append(marker)
        self.end += 1
        if first is None:
            assert completed is None
            return
        still_open = [begin for _, begin, end in self.model.transactions() if end is None]
        stable = min(still_open, default=offset + 1)
        assert completed == (producer, first, offset, not is_commit, stable)

    @rule(data=st.data())
    def advance_high_watermark(self, data: st.DataObject) -> None:
        self.model.high_watermark = data.draw(st.integers(self.model.high_watermark, self.end))
        self.states.on_high_watermark(Offset(self.model.high_watermark))

    @precondition(lambda self: self.end > 0)
    @rule()
    def restart_from_snapshot(self) -> None:
        """The format keeps one batch per producer, and open transactions but no decided ones."""
        raw = producer_snapshot.encode(self.states)
        self.states = producer_snapshot.decode(raw, end_offset=Offset(self.end))
        assert producer_snapshot.encode(self.states) == raw
        newest = {
            batch.base_offset
            for number in range(1, 4)
            for batch in self.model.known_batches(ProducerId(number))[-1:]
        }
        self.model.forgotten.update(
            item.base_offset
            for item in self.model.written
            if isinstance(item, ProducerBatch) and item.base_offset not in newest
        )
        self.model.reloaded_at = self.end
        self.model.stamp_newest()

    @invariant()
    def same_view(self) -> None:
        open_firsts = [first for _, first, end in self.model.transactions() if end is None]
        assert self.states.first_undecided_offset == min(open_firsts, default=None)
        assert self.states.first_unstable_offset == self.model.first_unstable()
        for number in range(1, 4):
            producer = ProducerId(number)
            entry = self.states.get(producer)
            assert (entry is None) == (not self.model.of(producer))
            if entry is not None:
                assert entry.epoch == self.model.epoch(producer)
                assert entry.coordinator_epoch == self.model.coordinator_epoch(producer)
                kept = [(batch[0], batch[2], batch[3]) for batch in entry.batches]
                assert kept == [
                    (batch.base_sequence, batch.base_offset, batch.last_offset)
                    for batch in self.model.known_batches(producer)
                ]


TestProducerMachine = ProducerMachine.TestCase
TestProducerMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
