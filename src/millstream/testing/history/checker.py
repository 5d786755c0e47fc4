"""What clients did and were answered: the checker of recorded histories.

A send ends `ok` (acknowledged at an offset), `fail` (certainly not stored) or `info` (unknown: the
answer was lost). Everything else is derived from that, from what consumers polled and from one
last read of everything after the faults are over. A power loss is part of the history, because it
may take records that were not yet as durable as promised, and their offsets are then given to
other records; nothing else excuses a difference.

The anomalies have the names that Jepsen's tests of Kafka have for them.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

PartitionName = tuple[str, int]
"""Topic and partition index; a topic that was deleted and created again has another name here."""

NEVER: Final = 2**63 - 1
"""As the floor of a loss: everything that was acknowledged or read had to survive."""


class Outcome(StrEnum):
    """What a producer knows of a batch."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


def format_value(value: bytes) -> str:
    """A value for messages: its first bytes identify it."""
    return repr(value[:40])


class Anomaly(NamedTuple):
    """Something that must not happen with a correct broker."""

    kind: str
    text: str


@dataclass(slots=True, kw_only=True, eq=False)
class Send:
    """One batch. Its values are unique in the whole history, and each may be stored once."""

    lane: str
    """Batches of one lane are stored in their order, whatever is sent again."""
    number: int
    partition: PartitionName
    values: Sequence[bytes]
    outcome: Outcome = Outcome.INFO
    base_offset: int = -1
    ended: int = NEVER

    def __repr__(self) -> str:
        return f"{self.lane} #{self.number} to {self.partition} ({self.outcome} {self.base_offset})"


class Loss(NamedTuple):
    """The log ended at `end` after the power had been lost; below `floor` nothing may be gone."""

    at: int
    end: int
    floor: int

    def excuses(self, offset: int) -> bool:
        return offset >= max(self.end, self.floor)


class Poll(NamedTuple):
    """What one fetch gave a consumer, from the position it requested."""

    at: int
    position: int
    records: Sequence[tuple[int, bytes]]


@dataclass(slots=True)
class Run:
    """Polls of one consumer in one partition, from one seek to the next."""

    consumer: str
    partition: PartitionName
    is_fenced: bool
    """It sends leader epochs (KIP-320), so it must notice a truncation."""
    polls: list[Poll] = field(default_factory=list)


class Observation(NamedTuple):
    """A value at an offset, as some client saw it at some time."""

    at: int
    offset: int
    value: bytes
    source: str


class History:
    """Append-only; times are positions in the order of events."""

    def __init__(self) -> None:
        self._now = 0
        self.sends: list[Send] = []
        self.runs: list[Run] = []
        self.losses: dict[PartitionName, list[Loss]] = defaultdict(list)
        self.finals: dict[PartitionName, tuple[int, list[tuple[int, bytes]]]] = {}
        """Log start and records of every partition that existed at the end."""

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def send(
        self, lane: str, number: int, partition: PartitionName, values: Sequence[bytes]
    ) -> Send:
        """A batch is about to be sent; unknown until `ended`."""
        one = Send(lane=lane, number=number, partition=partition, values=values)
        self.sends.append(one)
        return one

    def acknowledged(self, send: Send, base_offset: int) -> None:
        send.outcome, send.base_offset, send.ended = Outcome.OK, base_offset, self._tick()

    def refused(self, send: Send) -> None:
        """It was not stored, and will not be."""
        send.outcome, send.ended = Outcome.FAIL, self._tick()

    def seek(self, consumer: str, partition: PartitionName, *, is_fenced: bool) -> Run:
        """A consumer begins to read at a position, or is reset to another one."""
        run = Run(consumer, partition, is_fenced)
        self.runs.append(run)
        return run

    def polled(self, run: Run, position: int, records: Sequence[tuple[int, bytes]]) -> None:
        run.polls.append(Poll(self._tick(), position, records))

    def lost_power(self, partition: PartitionName, *, end: int, floor: int) -> None:
        self.losses[partition].append(Loss(self._tick(), end, floor))

    def acked_end(self, partition: PartitionName) -> int:
        """No producer will retry a batch below this offset."""
        lost_at = max((loss.at for loss in self.losses.get(partition, [])), default=-1)
        acknowledged: dict[str, int] = {}
        for one in self.sends:
            if one.partition == partition:
                is_known = one.outcome is Outcome.OK and one.ended > lost_at
                end = one.base_offset if is_known else 0
                acknowledged[one.lane] = max(acknowledged.get(one.lane, 0), end)
        return min(acknowledged.values(), default=0)

    def record_final_read(
        self, partition: PartitionName, log_start: int, records: Iterable[tuple[int, bytes]]
    ) -> None:
        self._tick()
        self.finals[partition] = (log_start, list(records))


def check_history(history: History) -> list[Anomaly]:
    """All anomalies, worst first per partition; empty for a good history."""
    sent = {value: one for one in history.sends for value in one.values}
    found: list[Anomaly] = []
    partitions = dict.fromkeys(
        [one.partition for one in history.sends] + [one.partition for one in history.runs]
    )
    for partition in partitions:
        found += _PartitionCheck(history, partition, sent).anomalies()
    return found


class _PartitionCheck:
    """One partition's part of the history."""

    def __init__(self, history: History, partition: PartitionName, sent: dict[bytes, Send]) -> None:
        self._history = history
        self._partition = partition
        self._sent = sent
        self._losses = history.losses.get(partition, [])
        self._sends = [one for one in history.sends if one.partition == partition]
        self._runs = [one for one in history.runs if one.partition == partition]
        self._final = history.finals.get(partition)
        self._start = self._final[0] if self._final is not None else 0
        self._acks = list(self._acknowledged())
        self._polls = list(self._polled())
        self._last = [
            Observation(NEVER, offset, value, "the last read") for offset, value in self._ends()
        ]
        self._kept = [
            one for one in (*self._acks, *self._polls, *self._last) if not self._is_excused(one)
        ]

    def anomalies(self) -> Iterator[Anomaly]:
        yield from self._phantoms()
        yield from self._inconsistent_offsets()
        if self._final is not None:
            yield from self._lost("lost-write", self._acks)
            yield from self._lost("lost-read", self._polls)
        yield from self._duplicates()
        yield from self._sends_out_of_order()
        for run in self._runs:
            yield from self._skips(run)

    # -- what was seen ---------------------------------------------------------------------

    def _acknowledged(self) -> Iterator[Observation]:
        for one in self._sends:
            if one.outcome is Outcome.OK:
                for offset, value in enumerate(one.values, one.base_offset):
                    yield Observation(one.ended, offset, value, f"acknowledged: {one}")

    def _polled(self) -> Iterator[Observation]:
        for run in self._runs:
            for poll in run.polls:
                for offset, value in poll.records:
                    yield Observation(poll.at, offset, value, f"polled by {run.consumer}")

    def _ends(self) -> list[tuple[int, bytes]]:
        return self._final[1] if self._final is not None else []

    def _is_excused(self, one: Observation) -> bool:
        return any(loss.at > one.at and loss.excuses(one.offset) for loss in self._losses)

    # -- anomalies -------------------------------------------------------------------------

    def _phantoms(self) -> Iterator[Anomaly]:
        for one in (*self._polls, *self._last):
            send = self._sent.get(one.value)
            text = f"{format_value(one.value)} at {one.offset} of {self._partition}, {one.source}"
            if send is None:
                yield Anomaly("phantom", f"{text}: was never sent")
            elif send.partition != self._partition:
                yield Anomaly("phantom", f"{text}: was sent by {send}")
            elif send.outcome is Outcome.FAIL:
                yield Anomaly("phantom", f"{text}: was refused to {send}")

    def _inconsistent_offsets(self) -> Iterator[Anomaly]:
        """I-02; the offsets above the end that a power loss left are assigned again."""
        values: dict[tuple[int, int], Observation] = {}
        for one in (*self._acks, *self._polls, *self._last):
            era = sum(loss.at < one.at and loss.end <= one.offset for loss in self._losses)
            first = values.setdefault((one.offset, era), one)
            if first.value != one.value:
                was = f"{format_value(first.value)} ({first.source})"
                text = f"{one.offset} of {self._partition} is {was} and {format_value(one.value)}"
                yield Anomaly("inconsistent-offsets", f"{text} ({one.source})")

    def _lost(self, kind: str, seen: Sequence[Observation]) -> Iterator[Anomaly]:
        there = dict(self._ends())
        for one in seen:
            is_deleted = one.offset < self._start
            if not is_deleted and one.offset not in there and not self._is_excused(one):
                text = f"{format_value(one.value)} at {one.offset} of {self._partition}"
                yield Anomaly(kind, f"{text} is gone, {one.source}")

    def _duplicates(self) -> Iterator[Anomaly]:
        """I-20, also for producers without sequences: in these histories they send a batch once."""
        first_at: dict[bytes, Observation] = {}
        for one in self._kept:
            first = first_at.setdefault(one.value, one)
            if first.offset != one.offset:
                text = f"at {first.offset} ({first.source}) and {one.offset} ({one.source})"
                yield Anomaly("duplicate", f"{format_value(one.value)} in {self._partition} {text}")

    def _sends_out_of_order(self) -> Iterator[Anomaly]:
        """I-03"""
        offset_of = {one.value: one.offset for one in self._kept}
        lanes: dict[str, list[tuple[bytes, int]]] = defaultdict(list)
        for send in sorted(self._sends, key=lambda one: one.number):
            known = [(value, offset_of[value]) for value in send.values if value in offset_of]
            lanes[send.lane] += known
        for lane, stored in lanes.items():
            for (value, offset), (later, later_offset) in pairwise(stored):
                if later_offset <= offset:
                    earlier = f"{format_value(value)} at {offset}"
                    text = f"{format_value(later)} at {later_offset} was sent after {earlier}"
                    yield Anomaly("nonmonotonic-send", f"{lane} in {self._partition}: {text}")

    def _skips(self, run: Run) -> Iterator[Anomaly]:
        """I-32"""
        known = sorted({one.offset for one in self._kept})
        text = f"{run.consumer} in {self._partition}"
        position, polled_at = -1, -1
        for poll in run.polls:
            if not poll.records:
                continue
            position = poll.position if position < 0 else position
            lost = [loss.end for loss in self._losses if polled_at < loss.at < poll.at]
            if polled_at >= 0 and min(lost, default=NEVER) < position:
                if run.is_fenced:
                    yield Anomaly("poll-skip", f"{text} at {position}: did not notice a lost tail")
                position = poll.records[0][0]
            polled_at = poll.at
            for offset, _ in poll.records:
                if offset < position:
                    yield Anomaly("nonmonotonic-poll", f"{text}: {offset} after {position - 1}")
                elif self._is_known_between(known, position, offset):
                    yield Anomaly("poll-skip", f"{text}: {offset} where {position} was due")
                position = offset + 1

    @staticmethod
    def _is_known_between(known: Sequence[int], start: int, end: int) -> bool:
        at = bisect_right(known, start - 1)
        return at < len(known) and known[at] < end
