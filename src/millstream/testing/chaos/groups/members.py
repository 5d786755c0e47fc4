"""One consumer group under test: its members, what they recorded, and when it is stable."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from millstream.testing.chaos.groups.programs import MemberKind, Program
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.history.group_events import (
    Failed,
    Harmed,
    LineFollower,
    ObservedOffsets,
    PartitionName,
    Produced,
    member_event,
)
from millstream.testing.history.groups import GroupHistory, check_group

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000
POLL_INTERVAL_MS: Final = 9_000
"""Longer than the session, as librdkafka requires."""
STALL_MAX_MS: Final = 300_000
ANOMALIES_SHOWN_MAX: Final = 8


@dataclass(slots=True)
class Member:
    """One life of one client in the group."""

    name: str
    kind: MemberKind
    program: Program
    instance: str | None
    lines: LineFollower
    is_stalled: bool = False


class Group:
    """Reads topics by name, or all that match a pattern."""

    def __init__(
        self, name: str, directory: Path, *, topics: Sequence[str] = (), pattern: str | None = None
    ) -> None:
        self.name: Final = name
        self.pattern: Final = pattern
        self.topics: Final = list(topics)
        self.history: Final = GroupHistory()
        self.members: Final[dict[str, Member]] = {}
        """Members that are alive."""
        self._directory = directory
        self._gone: list[LineFollower] = []
        self._lives = 0
        directory.mkdir(parents=True, exist_ok=True)

    def reads(self, topic: str) -> bool:
        if self.pattern is not None:
            return re.match(self.pattern, topic) is not None
        return topic in self.topics

    # -- members ---------------------------------------------------------------------------

    def join(
        self, kind: MemberKind, program: Program, servers: str, *, instance: str | None = None
    ) -> Member:
        """Add a member; it starts at once."""
        self._lives += 1
        name = f"{self.name}-{self._lives}-{kind}"
        path = self._directory / f"{name}.jsonl"
        member = Member(name, kind, program, instance, LineFollower(path))
        program.request(
            "join",
            servers=servers,
            member=name,
            log=str(path),
            group=self.name,
            topics=self.topics,
            pattern=self.pattern,
            protocol=kind.protocol,
            instance=instance,
            session_ms=SESSION_MS,
            heartbeat_ms=HEARTBEAT_MS,
            poll_interval_ms=POLL_INTERVAL_MS,
        )
        self.members[name] = member
        return member

    def leave(self, member: Member) -> None:
        """Leave the group properly; return when its consumer is closed."""
        member.program.request("leave", member=member.name)
        self._remove(member)
        self.take_members()

    def stall(self, member: Member, now_ns: int) -> None:
        """Stop its polls until it is woken."""
        self.record_harm(member, now_ns, "stalled")
        member.is_stalled = True
        member.program.request("stall", member=member.name, ms=STALL_MAX_MS)

    def wake(self, member: Member) -> None:
        member.is_stalled = False
        member.program.request("stall", member=member.name, ms=0)

    def record_harm(self, member: Member, now_ns: int, how: str) -> None:
        self.history.harm(Harmed(now_ns, member.name, how))

    def record_kill(self, member: Member, now_ns: int) -> None:
        """Record that its process was killed."""
        self._remove(member)
        self.take_members()
        self.history.harm(Harmed(now_ns, member.name, "killed"), is_death=True)

    def _remove(self, member: Member) -> None:
        del self.members[member.name]
        self._gone.append(member.lines)

    # -- what they recorded ----------------------------------------------------------------

    def take_members(self) -> None:
        """Read what is new in all logs, also of members that are gone."""
        for lines in (*(one.lines for one in self.members.values()), *self._gone):
            story = self.history.member_history(lines.path.stem)
            for line in lines.take():
                event = member_event(line)
                story.add(event)
                if isinstance(event, Failed):
                    raise ChaosFailed(f"{lines.path.stem} gave up: {event.why}")

    def take(self, produced: Iterable[Produced], seen: Iterable[ObservedOffsets]) -> None:
        for one in produced:
            if self.reads(one.partition[0]):
                self.history.produce(one)
        self.history.observed_offsets.extend(seen)
        self.take_members()

    # -- checks ----------------------------------------------------------------------------

    def unstable_reason(self, places: Iterable[PartitionName], *, is_shared: bool = True) -> str:
        """Why the group is not stable yet, "" when it is.

        Stable: every partition has one owner, which is alive and polls; `is_shared` requires that
        no member is without a partition, where there are enough.
        """
        owners = self.history.owners()
        expected = list(places)
        working = {one.name for one in self.members.values() if not one.is_stalled}
        for place in expected:
            # A stalled member does not know yet that it was replaced.
            found = [one for one in owners.get(place, []) if one in working]
            if len(found) != 1:
                return f"{place} belongs to {found or 'no member'}"
        idle = working - {one for place in expected for one in owners[place]}
        if is_shared and idle and len(working) <= len(expected):
            return f"{sorted(idle)} have nothing"
        return ""

    def check(self, *, is_complete: bool) -> None:
        """Raise ChaosFailed with the anomalies found."""
        found = check_group(self.history, is_complete=is_complete)
        if found:
            lines = [f"{one.kind}: {one.text}" for one in found[:ANOMALIES_SHOWN_MAX]]
            head = f"group {self.name}: {len(found)} anomalies (logs in {self._directory})"
            raise ChaosFailed("\n".join([head, *lines]))
