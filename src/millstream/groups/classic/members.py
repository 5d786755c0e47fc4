"""One member of a classic group, and the collection of a group's members.

The roster keeps indexes for what the coordinator needs all the time: static instances, how many
members have joined, which protocols all members support.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.groups.memory import MEMBER_BYTES, protocols_bytes
from millstream.model.ids import NO_GENERATION, GenerationId, InstanceId, MemberId
from millstream.model.invariant import invariant
from millstream.shards.effects import Caller
from millstream.wire.messages.join_group import JoinGroupRequest

NO_MEMBER: Final = MemberId("")
"""Sent by a client that has no member id yet."""


class MemberFacts(NamedTuple):
    """What a member sends about itself when it joins."""

    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: dict[str, bytes]
    """Metadata by the name of the protocol, the preferred first."""


def facts_of(caller: Caller, request: JoinGroupRequest) -> MemberFacts:
    """Copies what outlives the request's frame. Of a repeated name the first is used."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, bytes(protocol.metadata))
    # Version 0 has no rebalance timeout: the session's is used, as before there were two.
    has_timeout = caller.version >= 1
    return MemberFacts(
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if has_timeout else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=protocols,
    )


def facts_bytes(facts: MemberFacts) -> int:
    """What they take in memory."""
    return MEMBER_BYTES + len(facts.client_id) + protocols_bytes(facts.protocols.items())


class Member:
    """A member, its assignment, and its waiting requests."""

    __slots__ = (
        "assigned_in",
        "assignment",
        "facts",
        "instance_id",
        "is_new",
        "join_caller",
        "member_id",
        "size_bytes",
        "sync_caller",
    )

    def __init__(
        self, member_id: MemberId, instance_id: InstanceId | None, facts: MemberFacts
    ) -> None:
        self.member_id, self.instance_id, self.facts = member_id, instance_id, facts
        self.size_bytes = facts_bytes(facts)
        """Of the facts, as counted by its roster."""
        self.assignment = b""
        self.assigned_in: GenerationId = NO_GENERATION
        """The generation of the assignment (I-27)."""
        self.join_caller: Caller | None = None
        self.sync_caller: Caller | None = None
        self.is_new = False
        """It has not been in a generation yet: waiting in JoinGroup does not keep it alive."""

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        return self.join_caller is not None

    @property
    def is_heartbeat_exempt(self) -> bool:
        """It waits for our response, so it does not heartbeat."""
        if self.is_new:
            return False
        return self.join_caller is not None or self.sync_caller is not None

    def has_same_protocols(self, facts: MemberFacts) -> bool:
        """The same names with the same metadata in the same order."""
        return list(self.facts.protocols.items()) == list(facts.protocols.items())

    def metadata(self, protocol_name: str) -> bytes:
        return self.facts.protocols[protocol_name]

    def successor(self, member_id: MemberId, facts: MemberFacts) -> "Member":
        """The same static instance after a restart: it keeps its assignment."""
        successor = Member(member_id, self.instance_id, facts)
        successor.assignment, successor.assigned_in = self.assignment, self.assigned_in
        return successor


class Roster:
    """The members of one group."""

    __slots__ = (
        "_by_id",
        "_facts_bytes",
        "_supporters",
        "awaiting_count",
        "instances",
        "leader_id",
        "pending",
    )

    def __init__(self) -> None:
        self._by_id: dict[MemberId, Member] = {}
        self._supporters: Counter[str] = Counter()
        """How many members support a protocol."""
        self._facts_bytes = 0
        self.awaiting_count = 0
        """Members whose JoinGroup waits."""
        self.instances: dict[InstanceId, MemberId] = {}
        self.leader_id: MemberId | None = None
        self.pending: set[MemberId] = set()
        """Ids that were given out (KIP-394) and have not joined yet."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: MemberId) -> bool:
        return member_id in self._by_id

    def get(self, member_id: MemberId) -> Member | None:
        return self._by_id.get(member_id)

    def __getitem__(self, member_id: MemberId) -> Member:
        return self._by_id[member_id]

    @property
    def ids(self) -> set[MemberId]:
        return set(self._by_id)

    @property
    def has_all_joined(self) -> bool:
        return self.awaiting_count == len(self._by_id) and not self.pending

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long all members have to join: the longest timeout of any member."""
        return max((member.facts.rebalance_timeout_ms for member in self), default=0)

    @property
    def size_bytes(self) -> int:
        """What the members, and ids that were given out, keep in memory."""
        return self._facts_bytes + len(self.pending) * MEMBER_BYTES

    # -- changes -------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        invariant(member.member_id not in self._by_id, "I-28 a member is added twice")
        if member.instance_id is not None:
            invariant(member.instance_id not in self.instances, "I-28 a static instance twice")
            self.instances[member.instance_id] = member.member_id
        self._by_id[member.member_id] = member
        self._facts_bytes += member.size_bytes
        self._count_protocols(member, by=1)
        self.awaiting_count += member.is_awaiting_join
        self.pending.discard(member.member_id)
        self.leader_id = self.leader_id or member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; another one becomes the leader if it was."""
        del self._by_id[member.member_id]
        self._facts_bytes -= member.size_bytes
        if member.instance_id is not None:
            known_id = self.instances.pop(member.instance_id, None)
            invariant(known_id == member.member_id, "I-28 an instance of two members")
        self._count_protocols(member, by=-1)
        self.awaiting_count -= member.is_awaiting_join
        if self.leader_id == member.member_id:
            self.leader_id = next(iter(self._by_id), None)

    def replace(self, member: Member, successor: Member) -> None:
        """The static instance continues under another member id, also as the leader."""
        was_leader = self.leader_id == member.member_id
        self.remove(member)
        self.add(successor)
        if was_leader:
            self.leader_id = successor.member_id

    def update(self, member: Member, facts: MemberFacts) -> None:
        """It has rejoined."""
        self._count_protocols(member, by=-1)
        self._facts_bytes -= member.size_bytes
        member.facts, member.size_bytes = facts, facts_bytes(facts)
        self._facts_bytes += member.size_bytes
        self._count_protocols(member, by=1)

    def await_join(self, member: Member, caller: Caller) -> Caller | None:
        """Its JoinGroup waits now; returns the one that waited before."""
        before, member.join_caller = member.join_caller, caller
        self.awaiting_count += before is None
        return before

    def take_join(self, member: Member) -> Caller | None:
        """Remove and return its waiting JoinGroup."""
        caller, member.join_caller = member.join_caller, None
        self.awaiting_count -= caller is not None
        invariant(self.awaiting_count >= 0, "I-36 more joins answered than received")
        return caller

    def elect_joined_leader(self) -> bool:
        """The leader must be a member that has joined; returns whether there is one."""
        leader = self._by_id.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.is_awaiting_join:
            return True
        joined = next((member for member in self if member.is_awaiting_join), None)
        if joined is not None:
            self.leader_id = joined.member_id
        return joined is not None

    # -- protocols -----------------------------------------------------------------------------

    def supports_any(self, protocols: dict[str, bytes]) -> bool:
        """Whether one of them is supported by every member."""
        return any(self._supporters[name] == len(self._by_id) for name in protocols)

    def select_protocol(self) -> str:
        """Each member votes for its preferred protocol among those that all support.

        With equal votes the protocol voted for first wins, so the oldest members decide.
        """
        invariant(bool(self._by_id), "I-27 a protocol is selected without members")
        votes: Counter[str] = Counter()
        for member in self:
            votes[next(name for name in member.facts.protocols if self._is_common(name))] += 1
        return max(votes, key=votes.__getitem__)

    def _is_common(self, name: str) -> bool:
        return self._supporters[name] == len(self._by_id)

    def _count_protocols(self, member: Member, *, by: int) -> None:
        for name in member.facts.protocols:
            self._supporters[name] += by
            if not self._supporters[name]:
                del self._supporters[name]
