"""What clients did and were told, and what cannot be: the checker of recorded histories.

A send ends `ok` (acknowledged at an offset), `fail` (certainly not stored) or `info` (nobody
knows: the answer was lost). Everything else is derived from that, from what consumers polled and
from one last read of everything after the faults are over. A power loss is part of the history,
because records that were not yet as durable as promised may go with it, and their offsets are
given to others then; nothing else excuses a difference.

The anomalies have the names that Jepsen's tests of Kafka have for them.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

Place = tuple[str, int]
"""A partition of one topic; a topic that was deleted and made anew has another name here."""

NEVER: Final = 2**63 - 1
"""As the floor of a loss: everything a client was told of had to survive."""


class Outcome(StrEnum):
    """What a producer knows of a batch."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


def told_of(value: bytes) -> str:
    """A value as a person reads it: what tells it from others comes first."""
    return repr(value[:40])


class Anomaly(NamedTuple):
    """Something that no correct broker lets happen."""

    kind: str
    told: str


@dataclass(slots=True, kw_only=True, eq=False)
class Send:
    """One batch. Its values are unique in the whole history, and each may be stored once."""

    lane: str
    """Batches of one lane are stored in their order, whatever is sent again."""
    number: int
    place: Place
    values: Sequence[bytes]
    outcome: Outcome = Outcome.INFO
    base_offset: int = -1
    ended: int = NEVER

    def __repr__(self) -> str:
        return f"{self.lane} #{self.number} to {self.place} ({self.outcome} {self.base_offset})"


class Loss(NamedTuple):
    """The log ended at `end` after the power had been lost; below `floor` nothing may be gone."""

    at: int
    end: int
    floor: int

    def excuses(self, offset: int) -> bool:
        return offset >= max(self.end, self.floor)


class Poll(NamedTuple):
    """What one fetch gave a consumer, from the position it asked for."""

    at: int
    position: int
    records: Sequence[tuple[int, bytes]]


@dataclass(slots=True)
class Run:
    """Polls of one consumer in one partition, from one seek to the next."""

    consumer: str
    place: Place
    is_fenced: bool
    """It names leader epochs (KIP-320), so a truncation may not go by unnoticed."""
    polls: list[Poll] = field(default_factory=list)


class Seen(NamedTuple):
    """A value at an offset, as somebody was told at some time."""

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
        self.losses: dict[Place, list[Loss]] = defaultdict(list)
        self.finals: dict[Place, tuple[int, list[tuple[int, bytes]]]] = {}
        """Log start and records of every partition that was there at the end."""

    def _tick(self) -> int:
        self._now += 1
        return self._now

    def send(self, lane: str, number: int, place: Place, values: Sequence[bytes]) -> Send:
        """A batch is about to be sent; unknown until `ended`."""
        one = Send(lane=lane, number=number, place=place, values=values)
        self.sends.append(one)
        return one

    def acknowledged(self, send: Send, base_offset: int) -> None:
        send.outcome, send.base_offset, send.ended = Outcome.OK, base_offset, self._tick()

    def refused(self, send: Send) -> None:
        """It was not stored, and will not be."""
        send.outcome, send.ended = Outcome.FAIL, self._tick()

    def seek(self, consumer: str, place: Place, *, is_fenced: bool) -> Run:
        """A consumer begins to read somewhere, or was told to go on elsewhere."""
        run = Run(consumer, place, is_fenced)
        self.runs.append(run)
        return run

    def polled(self, run: Run, position: int, records: Sequence[tuple[int, bytes]]) -> None:
        run.polls.append(Poll(self._tick(), position, records))

    def lost_power(self, place: Place, *, end: int, floor: int) -> None:
        self.losses[place].append(Loss(self._tick(), end, floor))

    def settled_end(self, place: Place) -> int:
        """Below it nothing is that a producer may still send again."""
        lost_at = max((loss.at for loss in self.losses.get(place, [])), default=-1)
        acknowledged: dict[str, int] = {}
        for one in self.sends:
            if one.place == place:
                is_known = one.outcome is Outcome.OK and one.ended > lost_at
                end = one.base_offset if is_known else 0
                acknowledged[one.lane] = max(acknowledged.get(one.lane, 0), end)
        return min(acknowledged.values(), default=0)

    def read_in_the_end(
        self, place: Place, log_start: int, records: Iterable[tuple[int, bytes]]
    ) -> None:
        self._tick()
        self.finals[place] = (log_start, list(records))


def check_history(history: History) -> list[Anomaly]:
    """Everything that is wrong, worst first per partition; empty for a good history."""
    sent = {value: one for one in history.sends for value in one.values}
    found: list[Anomaly] = []
    places = dict.fromkeys(
        [one.place for one in history.sends] + [one.place for one in history.runs]
    )
    for place in places:
        found += _PlaceCheck(history, place, sent).anomalies()
    return found


class _PlaceCheck:
    """One partition's part of the history."""

    def __init__(self, history: History, place: Place, sent: dict[bytes, Send]) -> None:
        self._history = history
        self._place = place
        self._sent = sent
        self._losses = history.losses.get(place, [])
        self._sends = [one for one in history.sends if one.place == place]
        self._runs = [one for one in history.runs if one.place == place]
        self._final = history.finals.get(place)
        self._start = self._final[0] if self._final is not None else 0
        self._acks = list(self._acknowledged())
        self._polls = list(self._polled())
        self._last = [Seen(NEVER, offset, value, "the last read") for offset, value in self._ends()]
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

    def _acknowledged(self) -> Iterator[Seen]:
        for one in self._sends:
            if one.outcome is Outcome.OK:
                for offset, value in enumerate(one.values, one.base_offset):
                    yield Seen(one.ended, offset, value, f"acknowledged: {one}")

    def _polled(self) -> Iterator[Seen]:
        for run in self._runs:
            for poll in run.polls:
                for offset, value in poll.records:
                    yield Seen(poll.at, offset, value, f"polled by {run.consumer}")

    def _ends(self) -> list[tuple[int, bytes]]:
        return self._final[1] if self._final is not None else []

    def _is_excused(self, one: Seen) -> bool:
        return any(loss.at > one.at and loss.excuses(one.offset) for loss in self._losses)

    # -- anomalies -------------------------------------------------------------------------

    def _phantoms(self) -> Iterator[Anomaly]:
        for one in (*self._polls, *self._last):
            send = self._sent.get(one.value)
            told = f"{told_of(one.value)} at {one.offset} of {self._place}, {one.source}"
            if send is None:
                yield Anomaly("phantom", f"{told}: was never sent")
            elif send.place != self._place:
                yield Anomaly("phantom", f"{told}: was sent by {send}")
            elif send.outcome is Outcome.FAIL:
                yield Anomaly("phantom", f"{told}: was refused to {send}")

    def _inconsistent_offsets(self) -> Iterator[Anomaly]:
        """I-02; the offsets behind the end that a power loss left are given out anew."""
        values: dict[tuple[int, int], Seen] = {}
        for one in (*self._acks, *self._polls, *self._last):
            era = sum(loss.at < one.at and loss.end <= one.offset for loss in self._losses)
            first = values.setdefault((one.offset, era), one)
            if first.value != one.value:
                was = f"{told_of(first.value)} ({first.source})"
                told = f"{one.offset} of {self._place} is {was} and {told_of(one.value)}"
                yield Anomaly("inconsistent-offsets", f"{told} ({one.source})")

    def _lost(self, kind: str, seen: Sequence[Seen]) -> Iterator[Anomaly]:
        there = dict(self._ends())
        for one in seen:
            is_deleted = one.offset < self._start
            if not is_deleted and one.offset not in there and not self._is_excused(one):
                told = f"{told_of(one.value)} at {one.offset} of {self._place}"
                yield Anomaly(kind, f"{told} is gone, {one.source}")

    def _duplicates(self) -> Iterator[Anomaly]:
        """I-20, also for producers without sequences here: they send a batch once."""
        first_at: dict[bytes, Seen] = {}
        for one in self._kept:
            first = first_at.setdefault(one.value, one)
            if first.offset != one.offset:
                told = f"at {first.offset} ({first.source}) and {one.offset} ({one.source})"
                yield Anomaly("duplicate", f"{told_of(one.value)} in {self._place} {told}")

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
                    told = f"{told_of(later)} at {later_offset} was sent after {told_of(value)}"
                    where = f"{lane} in {self._place}"
                    yield Anomaly("nonmonotonic-send", f"{where}: {told} at {offset}")

    def _skips(self, run: Run) -> Iterator[Anomaly]:
        """I-32"""
        known = sorted({one.offset for one in self._kept})
        told = f"{run.consumer} in {self._place}"
        position, looked = -1, -1
        for poll in run.polls:
            if not poll.records:
                continue
            position = poll.position if position < 0 else position
            lost = [loss.end for loss in self._losses if looked < loss.at < poll.at]
            if looked >= 0 and min(lost, default=NEVER) < position:
                if run.is_fenced:
                    yield Anomaly("poll-skip", f"{told} at {position}: not told of a lost tail")
                position = poll.records[0][0]
            looked = poll.at
            for offset, _ in poll.records:
                if offset < position:
                    yield Anomaly("nonmonotonic-poll", f"{told}: {offset} after {position - 1}")
                elif self._is_known_between(known, position, offset):
                    yield Anomaly("poll-skip", f"{told}: {offset} where {position} was due")
                position = offset + 1

    @staticmethod
    def _is_known_between(known: Sequence[int], start: int, end: int) -> bool:
        at = bisect_right(known, start - 1)
        return at < len(known) and known[at] < end
