"""One consumer group under test: its members, what they noted, and when it is settled."""

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
    Place,
    Produced,
    Seen,
    member_event,
)
from millstream.testing.history.groups import GroupHistory, check_group

SESSION_MS: Final = 6_000
HEARTBEAT_MS: Final = 1_000
POLL_INTERVAL_MS: Final = 9_000
"""Longer than the session, which librdkafka insists on."""
STALL_MAX_MS: Final = 300_000
ANOMALIES_TOLD_MAX: Final = 8


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
    """Reads some topics by name, or whatever matches a pattern."""

    def __init__(
        self, name: str, directory: Path, *, topics: Sequence[str] = (), pattern: str | None = None
    ) -> None:
        self.name: Final = name
        self.pattern: Final = pattern
        self.topics: Final = list(topics)
        self.history: Final = GroupHistory()
        self.members: Final[dict[str, Member]] = {}
        """Those that live."""
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
        """One more member; it works from now on."""
        self._lives += 1
        name = f"{self.name}-{self._lives}-{kind}"
        path = self._directory / f"{name}.jsonl"
        member = Member(name, kind, program, instance, LineFollower(path))
        program.ask(
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
        """In good order; returns when its consumer is closed."""
        member.program.ask("leave", member=member.name)
        self._forget(member)
        self.take_members()

    def stall(self, member: Member, now_ns: int) -> None:
        """It does not poll until it is woken."""
        self.harm(member, now_ns, "stalled")
        member.is_stalled = True
        member.program.ask("stall", member=member.name, ms=STALL_MAX_MS)

    def wake(self, member: Member) -> None:
        member.is_stalled = False
        member.program.ask("stall", member=member.name, ms=0)

    def harm(self, member: Member, now_ns: int, how: str) -> None:
        self.history.harm(Harmed(now_ns, member.name, how))

    def killed(self, member: Member, now_ns: int) -> None:
        """Its process is no more."""
        self._forget(member)
        self.take_members()
        self.history.harm(Harmed(now_ns, member.name, "killed"), is_death=True)

    def _forget(self, member: Member) -> None:
        del self.members[member.name]
        self._gone.append(member.lines)

    # -- what they noted -------------------------------------------------------------------

    def take_members(self) -> None:
        """What is new in all logs, also of those that are gone."""
        for lines in (*(one.lines for one in self.members.values()), *self._gone):
            story = self.history.story(lines.path.stem)
            for line in lines.take():
                event = member_event(line)
                story.add(event)
                if isinstance(event, Failed):
                    raise ChaosFailed(f"{lines.path.stem} gave up: {event.why}")

    def take(self, produced: Iterable[Produced], seen: Iterable[Seen]) -> None:
        for one in produced:
            if self.reads(one.place[0]):
                self.history.produce(one)
        self.history.seen.extend(seen)
        self.take_members()

    # -- what must be ----------------------------------------------------------------------

    def unsettled(self, places: Iterable[Place], *, is_shared: bool = True) -> str:
        """Why the group is not settled yet, "" when it is.

        Settled: every partition has one owner, who is there and polls; `is_shared` asks that
        nobody is without one, where there are enough.
        """
        owners = self.history.owners()
        wanted = list(places)
        working = {one.name for one in self.members.values() if not one.is_stalled}
        for place in wanted:
            # One that is stalled does not know yet that it was replaced.
            found = [one for one in owners.get(place, []) if one in working]
            if len(found) != 1:
                return f"{place} belongs to {found or 'nobody'}"
        idle = working - {one for place in wanted for one in owners[place]}
        if is_shared and idle and len(working) <= len(wanted):
            return f"{sorted(idle)} have nothing"
        return ""

    def check(self, *, is_complete: bool) -> None:
        """Raise ChaosFailed with what must not be."""
        found = check_group(self.history, is_complete=is_complete)
        if found:
            told = [f"{one.kind}: {one.told}" for one in found[:ANOMALIES_TOLD_MAX]]
            head = f"group {self.name}: {len(found)} anomalies (logs in {self._directory})"
            raise ChaosFailed("\n".join([head, *told]))
