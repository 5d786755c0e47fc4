"""What a consumer group may never do, checked from what its members recorded.

The checker is pure: events in (`history/group_events.py`), anomalies out. It knows nothing of
protocols beyond this: a member owns an assigned partition until it gives it up (revoked), learns
that it lost it, leaves, or is harmed (killed, paused, kept from polling), after which the group
may go on without it.

- I-27: no partition has two owners in one generation or member epoch, whatever happened; and none
  has two owners at one time, unless the first was harmed or learned that it was fenced.
- I-28, I-29: committed offsets never go back, neither for members that commit nor for an observer,
  and a new owner never begins before what was committed when it became the owner.
- Every record that was acknowledged to a producer is processed by a member at least once; no member
  skips one, and none works on a partition that it does not own.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millstream.testing.history.checker import NEVER, Anomaly
from millstream.testing.history.group_events import (
    UNKNOWN_GENERATION,
    Assigned,
    Began,
    Committed,
    Failed,
    GenerationChanged,
    Harmed,
    Left,
    Lost,
    MemberEvent,
    ObservedOffsets,
    PartitionName,
    Processed,
    Produced,
    Refused,
    Revoked,
)

RELEASED: Final = "revoked"
FENCED: Final = "lost"
LEFT: Final = "left"
DIED: Final = "died"
OPEN: Final = "open"

TWO_OWNERS: Final = "two owners in one generation"
TOO_EARLY: Final = "handed over before release"
NOT_OWNED: Final = "processed without owning"
SKIPPED: Final = "record skipped"
UNPROCESSED: Final = "record never processed"
WRONG_RECORD: Final = "another record than was produced"
WENT_BACK: Final = "committed offset went back"
BEGAN_BEFORE: Final = "began before the committed offset"
GAVE_UP: Final = "client gave up"

_NS: Final = 1e9


@dataclass(slots=True)
class Interval:
    """One member owns one partition."""

    member: str
    owner: str
    """The instance of a static member, or else the member."""
    partition: PartitionName
    start_ns: int
    generation: int
    end_ns: int = NEVER
    ending: str = OPEN
    first_offset: int | None = None

    def __str__(self) -> str:
        end = "" if self.end_ns == NEVER else f"{self.end_ns / _NS:.3f} "
        began = f"{self.start_ns / _NS:.3f}"
        return f"{self.member} [{began}, {end}{self.ending}) generation {self.generation}"


class Claim(NamedTuple):
    """A member says that it owns a partition in a generation."""

    partition: PartitionName
    generation: int
    member: str
    owner: str
    at_ns: int


class MemberHistory:
    """One life of one client, replayed event by event."""

    def __init__(self, name: str, done: set[tuple[PartitionName, int]]) -> None:
        self.name: Final = name
        self._done = done
        self.owner = name
        self.intervals: list[Interval] = []
        self.claims: list[Claim] = []
        self.commits: list[Committed] = []
        self.refused: list[Refused] = []
        self.processed: list[Processed] = []
        self.anomalies: list[Anomaly] = []
        self.losses = 0
        self.is_over = False
        self._open: dict[PartitionName, Interval] = {}
        self._next: dict[PartitionName, int] = {}
        self._last_ns = 0

    @property
    def owned(self) -> Sequence[PartitionName]:
        """What it owns now."""
        return list(self._open)

    def add(self, event: MemberEvent) -> None:
        """The next event of its file."""
        self._last_ns = event.at_ns
        match event:
            case Began():
                self.owner = event.instance or self.name
            case Assigned():
                self._assign(event)
            case GenerationChanged():
                self._claim(event.generation, event.at_ns)
            case Revoked():
                self._end(event.partitions, event.at_ns, RELEASED)
            case Lost():
                self.losses += 1
                self._end(event.partitions, event.at_ns, FENCED)
            case Processed():
                self._process(event)
            case Committed():
                self.commits.append(event)
            case Refused():
                self.refused.append(event)
            case Left():
                self.is_over = True
                self._end(list(self._open), event.at_ns, LEFT)
            case Failed():
                self._anomaly(GAVE_UP, event.why)

    def died(self, at_ns: int) -> None:
        """Killed; it may have noted something after the decision to kill it."""
        self.is_over = True
        self._end(list(self._open), max(at_ns, self._last_ns), DIED)

    def _assign(self, event: Assigned) -> None:
        for partition in event.partitions:
            if partition not in self._open:
                interval = Interval(self.name, self.owner, partition, event.at_ns, event.generation)
                self._open[partition] = interval
                self.intervals.append(interval)
        self._claim(event.generation, event.at_ns)

    def _claim(self, generation: int, at_ns: int) -> None:
        if generation == UNKNOWN_GENERATION:
            return
        for partition, interval in self._open.items():
            if interval.generation == UNKNOWN_GENERATION:
                interval.generation = generation
            self.claims.append(Claim(partition, generation, self.name, self.owner, at_ns))

    def _end(self, partitions: Iterable[PartitionName], at_ns: int, ending: str) -> None:
        for partition in partitions:
            interval = self._open.pop(partition, None)
            self._next.pop(partition, None)
            if interval is not None:
                interval.end_ns, interval.ending = at_ns, ending

    def _process(self, event: Processed) -> None:
        self.processed.append(event)
        self._done.add((event.partition, event.offset))
        interval = self._open.get(event.partition)
        text = f"{self.name}: {event.partition} offset {event.offset} at {event.at_ns / _NS:.3f}"
        if interval is None:
            self._anomaly(NOT_OWNED, text)
            return
        if interval.first_offset is None:
            interval.first_offset = event.offset
        # Reading again is allowed: a client may repeat what it could not commit.
        expected = self._next.get(event.partition, event.offset)
        if event.offset > expected:
            self._anomaly(SKIPPED, f"{text}, after {expected - 1}")
        self._next[event.partition] = max(expected, event.offset + 1)

    def _anomaly(self, kind: str, text: str) -> None:
        self.anomalies.append(Anomaly(kind, f"{self.name}: {text}" if kind == GAVE_UP else text))


@dataclass(slots=True)
class GroupHistory:
    """The recorded events of one group."""

    members: dict[str, MemberHistory] = field(default_factory=dict)
    produced: dict[tuple[PartitionName, int], str] = field(default_factory=dict)
    observed_offsets: list[ObservedOffsets] = field(default_factory=list)
    harms: list[Harmed] = field(default_factory=list)
    _done: set[tuple[PartitionName, int]] = field(default_factory=set)

    def member_history(self, member: str) -> MemberHistory:
        return self.members.setdefault(member, MemberHistory(member, self._done))

    def produce(self, event: Produced) -> None:
        self.produced[(event.partition, event.offset)] = event.value

    def harm(self, harm: Harmed, *, is_death: bool = False) -> None:
        """A member was kept from work, or killed."""
        self.harms.append(harm)
        if is_death:
            self.member_history(harm.member).died(harm.at_ns)

    def owners(self) -> dict[PartitionName, list[str]]:
        """The owners of each partition now, as the members recorded them."""
        found: dict[PartitionName, list[str]] = defaultdict(list)
        for member_history in self.members.values():
            for partition in member_history.owned:
                found[partition].append(member_history.name)
        return found

    def unprocessed(self) -> list[tuple[PartitionName, int]]:
        """Records that no member has processed yet."""
        return sorted(self.produced.keys() - self._done)


def check_group(history: GroupHistory, *, is_complete: bool = True) -> list[Anomaly]:
    """All anomalies; `is_complete` requires every record to be processed, as at a run's end."""
    member_histories = list(history.members.values())
    found = [one for member_history in member_histories for one in member_history.anomalies]
    found += _two_owners(member_history.claims for member_history in member_histories)
    intervals = [
        interval for member_history in member_histories for interval in member_history.intervals
    ]
    found += _too_early(intervals, history.harms)
    found += _wrong_records(history)
    facts = _Facts(
        commit for member_history in member_histories for commit in member_history.commits
    )
    found += _began_before(intervals, facts)
    found += _went_back(history, member_histories)
    if is_complete:
        missing = history.unprocessed()
        found += [
            Anomaly(
                UNPROCESSED, f"{partition} offset {offset}: {history.produced[(partition, offset)]}"
            )
            for partition, offset in missing
        ]
    return found


def _two_owners(claims: Iterable[Iterable[Claim]]) -> Iterator[Anomaly]:
    first: dict[tuple[PartitionName, int], Claim] = {}
    for claim in (one for group in claims for one in group):
        known = first.setdefault((claim.partition, claim.generation), claim)
        if known.owner != claim.owner:
            text = f"{claim.partition} in generation {claim.generation}: {known.member} at"
            text += f" {known.at_ns / _NS:.3f} and {claim.member} at {claim.at_ns / _NS:.3f}"
            yield Anomaly(TWO_OWNERS, text)


def _too_early(intervals: Iterable[Interval], harms: Iterable[Harmed]) -> Iterator[Anomaly]:
    harmed: dict[str, list[int]] = defaultdict(list)
    for harm in harms:
        harmed[harm.member].append(harm.at_ns)
    by_partition: dict[PartitionName, list[Interval]] = defaultdict(list)
    for interval in intervals:
        by_partition[interval.partition].append(interval)
    for partition, owned in by_partition.items():
        owned.sort(key=lambda one: one.start_ns)
        active: list[Interval] = []
        for later in owned:
            active = [one for one in active if one.end_ns > later.start_ns]
            for earlier in active:
                if earlier.owner == later.owner:
                    continue
                if not _may_be_replaced(earlier, later, harmed) and not _was_superseded(
                    later, earlier
                ):
                    yield Anomaly(TOO_EARLY, f"{partition}: {earlier} and {later}")
            active.append(later)


def _may_be_replaced(owner: Interval, other: Interval, harmed: Mapping[str, Sequence[int]]) -> bool:
    """It learned that it was fenced, or was harmed before the other one had it."""
    excuses = harmed.get(owner.member, ())
    is_harmed = any(owner.start_ns < at_ns <= other.start_ns for at_ns in excuses)
    return owner.ending == FENCED or is_harmed


def _was_superseded(owner: Interval, other: Interval) -> bool:
    """It was paused before it got its assignment, and the group went on without it."""
    is_older = UNKNOWN_GENERATION < owner.generation < other.generation
    return is_older and owner.ending == FENCED


def _wrong_records(history: GroupHistory) -> Iterator[Anomaly]:
    for member_history in history.members.values():
        for one in member_history.processed:
            expected = history.produced.get((one.partition, one.offset), one.value)
            if expected != one.value:
                text = f"{member_history.name}: {one.partition} offset {one.offset}"
                yield Anomaly(WRONG_RECORD, f"{text}: {one.value!r}, not {expected!r}")


class _Facts:
    """For each partition: the highest offset that was certainly committed, by time."""

    def __init__(self, commits: Iterable[Committed | ObservedOffsets]) -> None:
        self._times: dict[PartitionName, list[int]] = defaultdict(list)
        self._highest: dict[PartitionName, list[int]] = defaultdict(list)
        for commit in sorted(commits, key=lambda one: one.at_ns):
            for partition, offset in commit.offsets.items():
                highest = self._highest[partition]
                self._times[partition].append(commit.at_ns)
                highest.append(max(offset, highest[-1] if highest else offset))

    def before(self, partition: PartitionName, at_ns: int) -> int | None:
        """The highest offset that was known before that time."""
        at = bisect_left(self._times[partition], at_ns)
        return self._highest[partition][at - 1] if at else None


def _began_before(intervals: Iterable[Interval], facts: _Facts) -> Iterator[Anomaly]:
    for one in intervals:
        committed = facts.before(one.partition, one.start_ns)
        if committed is None or one.first_offset is None:
            continue
        if one.first_offset < committed:
            text = f"{one.partition}: {one} began at {one.first_offset}, committed was {committed}"
            yield Anomaly(BEGAN_BEFORE, text)


def _went_back(
    history: GroupHistory, member_histories: Iterable[MemberHistory]
) -> Iterator[Anomaly]:
    named: list[tuple[str, Committed | ObservedOffsets]] = [
        (member_history.name, commit)
        for member_history in member_histories
        for commit in member_history.commits
    ]
    named += [("an observer", one) for one in history.observed_offsets]
    facts = _Facts(event for _, event in named)
    for name, event in named:
        for partition, offset in event.offsets.items():
            known = facts.before(partition, event.began_ns)
            if known is not None and offset < known:
                text = (
                    f"{partition}: {name} has {offset} at {event.at_ns / _NS:.3f}, it was {known}"
                )
                yield Anomaly(WENT_BACK, text)


def figures(history: GroupHistory) -> Mapping[str, int]:
    """How much was checked, and what is worth checking without being wrong."""
    member_histories = list(history.members.values())
    processed = [
        (one.partition, one.offset)
        for member_history in member_histories
        for one in member_history.processed
    ]
    generations = {
        claim.generation for member_history in member_histories for claim in member_history.claims
    }
    harmed = {harm.member for harm in history.harms}
    return {
        "members": len(member_histories),
        "records produced": len(history.produced),
        "records processed": len(processed),
        "records processed again": len(processed) - len(set(processed)),
        "ownerships": sum(len(member_history.intervals) for member_history in member_histories),
        "generations": len(generations),
        "commits": sum(len(member_history.commits) for member_history in member_histories),
        "commits refused": sum(len(member_history.refused) for member_history in member_histories),
        "reads of committed offsets": len(history.observed_offsets),
        "fenced without harm": sum(
            one.losses for one in member_histories if one.name not in harmed
        ),
    }
