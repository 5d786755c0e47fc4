"""What a consumer group may never do, proved from what its members noted down.

The checker is pure: events in (`history/group_events.py`), anomalies out. It knows nothing of
protocols beyond this: who is told to own a partition owns it until he gives it up (revoked), is
told that he lost it, leaves, or is harmed (killed, paused, kept from polling), after which the
group may go on without him.

- I-27: no partition has two owners in one generation or member epoch, whatever happened; and none
  has two owners at one time, unless the first was harmed or learned that he was fenced.
- I-28, I-29: committed offsets never go back, neither for whoever commits nor for an onlooker, and
  a new owner never begins before what was committed when he became one.
- Every record that was acknowledged to a producer is processed by a member at least once; no member
  skips one, and none works on a partition that is not his own.
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
    Harmed,
    Left,
    Lost,
    MemberEvent,
    Place,
    Processed,
    Produced,
    Refused,
    Revoked,
    Seen,
    Told,
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
    place: Place
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

    place: Place
    generation: int
    member: str
    owner: str
    at_ns: int


class MemberStory:
    """One life of one client, replayed event by event."""

    def __init__(self, name: str, done: set[tuple[Place, int]]) -> None:
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
        self._open: dict[Place, Interval] = {}
        self._next: dict[Place, int] = {}
        self._last_ns = 0

    @property
    def owned(self) -> Sequence[Place]:
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
            case Told():
                self._claim(event.generation, event.at_ns)
            case Revoked():
                self._end(event.places, event.at_ns, RELEASED)
            case Lost():
                self.losses += 1
                self._end(event.places, event.at_ns, FENCED)
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
        for place in event.places:
            if place not in self._open:
                made = Interval(self.name, self.owner, place, event.at_ns, event.generation)
                self._open[place] = made
                self.intervals.append(made)
        self._claim(event.generation, event.at_ns)

    def _claim(self, generation: int, at_ns: int) -> None:
        if generation == UNKNOWN_GENERATION:
            return
        for place, interval in self._open.items():
            if interval.generation == UNKNOWN_GENERATION:
                interval.generation = generation
            self.claims.append(Claim(place, generation, self.name, self.owner, at_ns))

    def _end(self, places: Iterable[Place], at_ns: int, ending: str) -> None:
        for place in places:
            interval = self._open.pop(place, None)
            self._next.pop(place, None)
            if interval is not None:
                interval.end_ns, interval.ending = at_ns, ending

    def _process(self, event: Processed) -> None:
        self.processed.append(event)
        self._done.add((event.place, event.offset))
        interval = self._open.get(event.place)
        told = f"{self.name}: {event.place} offset {event.offset} at {event.at_ns / _NS:.3f}"
        if interval is None:
            self._anomaly(NOT_OWNED, told)
            return
        if interval.first_offset is None:
            interval.first_offset = event.offset
        # Reading again is allowed: a client may repeat what it could not commit.
        expected = self._next.get(event.place, event.offset)
        if event.offset > expected:
            self._anomaly(SKIPPED, f"{told}, after {expected - 1}")
        self._next[event.place] = max(expected, event.offset + 1)

    def _anomaly(self, kind: str, told: str) -> None:
        self.anomalies.append(Anomaly(kind, f"{self.name}: {told}" if kind == GAVE_UP else told))


@dataclass(slots=True)
class GroupHistory:
    """Everything that is known of one group."""

    members: dict[str, MemberStory] = field(default_factory=dict)
    produced: dict[tuple[Place, int], str] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    harms: list[Harmed] = field(default_factory=list)
    _done: set[tuple[Place, int]] = field(default_factory=set)

    def story(self, member: str) -> MemberStory:
        return self.members.setdefault(member, MemberStory(member, self._done))

    def produce(self, event: Produced) -> None:
        self.produced[(event.place, event.offset)] = event.value

    def harm(self, harm: Harmed, *, is_death: bool = False) -> None:
        """A member was kept from work, or killed."""
        self.harms.append(harm)
        if is_death:
            self.story(harm.member).died(harm.at_ns)

    def owners(self) -> dict[Place, list[str]]:
        """Who owns what now, as they say."""
        found: dict[Place, list[str]] = defaultdict(list)
        for story in self.members.values():
            for place in story.owned:
                found[place].append(story.name)
        return found

    def unprocessed(self) -> list[tuple[Place, int]]:
        """Records that nobody has processed yet."""
        return sorted(self.produced.keys() - self._done)


def check_group(history: GroupHistory, *, is_complete: bool = True) -> list[Anomaly]:
    """Everything that must not be; `is_complete` asks for every record, as at the end of a run."""
    stories = list(history.members.values())
    found = [one for story in stories for one in story.anomalies]
    found += _two_owners(story.claims for story in stories)
    intervals = [interval for story in stories for interval in story.intervals]
    found += _too_early(intervals, history.harms)
    found += _wrong_records(history)
    facts = _Facts(commit for story in stories for commit in story.commits)
    found += _began_before(intervals, facts)
    found += _went_back(history, stories)
    if is_complete:
        missing = history.unprocessed()
        found += [
            Anomaly(UNPROCESSED, f"{place} offset {offset}: {history.produced[(place, offset)]}")
            for place, offset in missing
        ]
    return found


def _two_owners(claims: Iterable[Iterable[Claim]]) -> Iterator[Anomaly]:
    first: dict[tuple[Place, int], Claim] = {}
    for claim in (one for group in claims for one in group):
        known = first.setdefault((claim.place, claim.generation), claim)
        if known.owner != claim.owner:
            told = f"{claim.place} in generation {claim.generation}: {known.member} at"
            told += f" {known.at_ns / _NS:.3f} and {claim.member} at {claim.at_ns / _NS:.3f}"
            yield Anomaly(TWO_OWNERS, told)


def _too_early(intervals: Iterable[Interval], harms: Iterable[Harmed]) -> Iterator[Anomaly]:
    harmed: dict[str, list[int]] = defaultdict(list)
    for harm in harms:
        harmed[harm.member].append(harm.at_ns)
    by_place: dict[Place, list[Interval]] = defaultdict(list)
    for interval in intervals:
        by_place[interval.place].append(interval)
    for place, owned in by_place.items():
        owned.sort(key=lambda one: one.start_ns)
        active: list[Interval] = []
        for later in owned:
            active = [one for one in active if one.end_ns > later.start_ns]
            for earlier in active:
                if earlier.owner == later.owner:
                    continue
                if not _may_be_replaced(earlier, later, harmed) and not _is_old_news(
                    later, earlier
                ):
                    yield Anomaly(TOO_EARLY, f"{place}: {earlier} and {later}")
            active.append(later)


def _may_be_replaced(owner: Interval, other: Interval, harmed: Mapping[str, Sequence[int]]) -> bool:
    """It learned that it was fenced, or was harmed before the other one had it."""
    excuses = harmed.get(owner.member, ())
    is_harmed = any(owner.start_ns < at_ns <= other.start_ns for at_ns in excuses)
    return owner.ending == FENCED or is_harmed


def _is_old_news(owner: Interval, other: Interval) -> bool:
    """It was stopped before it heard of its assignment, and the group went on without it."""
    is_older = UNKNOWN_GENERATION < owner.generation < other.generation
    return is_older and owner.ending == FENCED


def _wrong_records(history: GroupHistory) -> Iterator[Anomaly]:
    for story in history.members.values():
        for one in story.processed:
            expected = history.produced.get((one.place, one.offset), one.value)
            if expected != one.value:
                told = f"{story.name}: {one.place} offset {one.offset}"
                yield Anomaly(WRONG_RECORD, f"{told}: {one.value!r}, not {expected!r}")


class _Facts:
    """For each partition: the highest offset that was certainly committed, by time."""

    def __init__(self, commits: Iterable[Committed | Seen]) -> None:
        self._times: dict[Place, list[int]] = defaultdict(list)
        self._highest: dict[Place, list[int]] = defaultdict(list)
        for commit in sorted(commits, key=lambda one: one.at_ns):
            for place, offset in commit.offsets.items():
                highest = self._highest[place]
                self._times[place].append(commit.at_ns)
                highest.append(max(offset, highest[-1] if highest else offset))

    def before(self, place: Place, at_ns: int) -> int | None:
        """The highest offset that was told before that time."""
        at = bisect_left(self._times[place], at_ns)
        return self._highest[place][at - 1] if at else None


def _began_before(intervals: Iterable[Interval], facts: _Facts) -> Iterator[Anomaly]:
    for one in intervals:
        committed = facts.before(one.place, one.start_ns)
        if committed is None or one.first_offset is None:
            continue
        if one.first_offset < committed:
            told = f"{one.place}: {one} began at {one.first_offset}, committed was {committed}"
            yield Anomaly(BEGAN_BEFORE, told)


def _went_back(history: GroupHistory, stories: Iterable[MemberStory]) -> Iterator[Anomaly]:
    named: list[tuple[str, Committed | Seen]] = [
        (story.name, commit) for story in stories for commit in story.commits
    ]
    named += [("an onlooker", one) for one in history.seen]
    facts = _Facts(event for _, event in named)
    for name, event in named:
        for place, offset in event.offsets.items():
            known = facts.before(place, event.began_ns)
            if known is not None and offset < known:
                told = f"{place}: {name} has {offset} at {event.at_ns / _NS:.3f}, it was {known}"
                yield Anomaly(WENT_BACK, told)


def figures(history: GroupHistory) -> Mapping[str, int]:
    """How much was proved, and what is worth a look without being wrong."""
    stories = list(history.members.values())
    processed = [(one.place, one.offset) for story in stories for one in story.processed]
    generations = {claim.generation for story in stories for claim in story.claims}
    harmed = {harm.member for harm in history.harms}
    return {
        "members": len(stories),
        "records produced": len(history.produced),
        "records processed": len(processed),
        "records processed again": len(processed) - len(set(processed)),
        "ownerships": sum(len(story.intervals) for story in stories),
        "generations": len(generations),
        "commits": sum(len(story.commits) for story in stories),
        "commits refused": sum(len(story.refused) for story in stories),
        "looks at committed offsets": len(history.seen),
        "fenced without harm": sum(one.losses for one in stories if one.name not in harmed),
    }
