"""A log for tests of reading: gaps, transactions, markers; and what may be seen of it."""

import random
from typing import NamedTuple

from kits.kernels.column_batches import Record, batch_bytes, record_bytes
from millstream.wire.messages.fetch import AbortedTransaction

TRANSACTIONAL, CONTROL = 16, 32


class Stored(NamedTuple):
    data: bytes
    base: int
    last: int
    epoch: int


class Seen(NamedTuple):
    """One record that somebody may see."""

    offset: int
    value: bytes | None


class ModelLog:
    """Batches as a broker has them."""

    def __init__(self) -> None:
        self.start = 0
        self.batches: list[Stored] = []
        self.seen: list[tuple[Seen, int | None]] = []
        """Every record that is no marker, with the producer of its transaction."""
        self.open: dict[int, int] = {}
        """Producers with an open transaction, and where it began."""
        self.aborted: list[tuple[int, int, int]] = []
        """(producer, first offset, offset of the marker)."""
        self.aborted_records: set[int] = set()
        self._mine: dict[int, list[int]] = {}
        self._gap = 0

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else 0

    @property
    def stable_end(self) -> int:
        return min(self.open.values(), default=self.end)

    def append(
        self,
        values: list[bytes | None],
        *,
        producer: int | None = None,
        keeps: list[int] | None = None,
        epoch: int = 0,
        attributes: int = 0,
    ) -> None:
        """A batch; `keeps` are the deltas of the records that compaction left in it."""
        base, count = self.end, len(values)
        keeps = list(range(count)) if keeps is None else keeps
        if producer is not None:
            attributes |= TRANSACTIONAL
            self.open.setdefault(producer, base)
        for delta in keeps:
            self.seen.append((Seen(base + delta, values[delta]), producer))
            if producer is not None:
                self._mine.setdefault(producer, []).append(base + delta)
        payload = b"".join(
            record_bytes(Record(b"k", values[delta], 7), offset_delta=delta) for delta in keeps
        )
        self._add(
            payload, len(keeps), count, epoch, attributes, -1 if producer is None else producer
        )

    def end_transaction(self, producer: int, *, commits: bool, epoch: int = 0) -> None:
        first = self.open.pop(producer, None)
        if first is None:
            return
        mine = self._mine.pop(producer, [])
        if not commits:
            self.aborted.append((producer, first, self.end))
            self.aborted_records.update(mine)
        key = b"\0\0" + (b"\0\1" if commits else b"\0\0")
        payload = record_bytes(Record(key, b"\0\0\0\0\0\0", 0), offset_delta=0)
        self._add(payload, 1, 1, epoch, TRANSACTIONAL | CONTROL, producer)

    def skip(self, count: int) -> None:
        """Offsets that compaction left nothing of: the next batch begins later."""
        self._gap = count

    def _add(
        self, payload: bytes, records: int, span: int, epoch: int, attributes: int, producer: int
    ) -> None:
        base = self.end + self._gap
        shift, self._gap = self._gap, 0
        if shift:
            self._shift(base - shift, shift)
        data = batch_bytes(
            payload, base_offset=base, record_count=records, last_offset_delta=span - 1,
            attributes=attributes, producer_id=producer, producer_epoch=0, leader_epoch=epoch,
            max_timestamp=9,
        )  # fmt: skip
        self.batches.append(Stored(data, base, base + span - 1, epoch))

    def _shift(self, end: int, by: int) -> None:
        """What was noted of the batch at hand, which begins later than thought."""
        self.seen = [
            (one._replace(offset=one.offset + by), whose) if one.offset >= end else (one, whose)
            for one, whose in self.seen
        ]
        for mine in self._mine.values():
            mine[:] = [at + by if at >= end else at for at in mine]
        self.open = {who: at + by if at >= end else at for who, at in self.open.items()}

    def read(self, offset: int, bytes_max: int, *, until: int, at_least_one: bool) -> bytes:
        """As a broker: whole batches and the beginning of the next, one in any case if asked."""
        data = b"".join(one.data for one in self.batches if offset <= one.last < until)
        first = next((one for one in self.batches if offset <= one.last < until), None)
        if first is None:
            return b""
        if at_least_one:
            bytes_max = max(bytes_max, len(first.data))
        return data[:bytes_max]

    def aborted_in(self, start: int, end: int) -> list[AbortedTransaction]:
        return [
            AbortedTransaction(producer_id=who, first_offset=first)
            for who, first, marker in self.aborted
            if first < end and marker >= start
        ]

    def visible(self, start: int, end: int, *, is_committed: bool) -> list[Seen]:
        return [
            one
            for one, _ in self.seen
            if start <= one.offset < end
            and not (is_committed and one.offset in self.aborted_records)
        ]


def random_log(rng: random.Random, *, steps: int = 40, size_max: int = 300) -> ModelLog:
    log = ModelLog()
    epoch = 0
    for _ in range(steps):
        count = rng.choice((1, 1, 2, 10))
        values = [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(size_max))] * count
        producer = rng.choice((None, 1, 2, 3))
        keeps = None
        if rng.random() < 0.2:
            keeps = [at for at in range(count) if rng.random() < 0.5]
        if rng.random() < 0.1:
            log.skip(rng.randrange(1, 30))
        epoch += rng.random() < 0.1
        if rng.random() < 0.3 and producer is not None:
            log.end_transaction(producer, commits=rng.random() < 0.5, epoch=epoch)
        else:
            log.append(values, producer=producer, keeps=keeps, epoch=epoch)
    return log
