"""Online upgrade of a classic group to a consumer group, and downgrade.

Both are only entries: the tombstones of one type and the records of the other, in one batch.
Members keep their partitions, and the generation continues as their member epoch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final
from uuid import UUID

from millstream.groups.consumer import entries
from millstream.groups.consumer.embedded import (
    PROTOCOL_TYPE,
    by_topic_id,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from millstream.groups.consumer.member import (
    Assignment,
    ClassicFacts,
    ConsumerMember,
    MemberState,
)
from millstream.groups.consumer.state import GroupState
from millstream.groups.consumer.topics import TopicsView, metadata_hash
from millstream.groups.errors import GroupNotFound
from millstream.groups.records import keys
from millstream.groups.records.entries import Entry
from millstream.groups.records.values import GroupMetadataValue, MemberMetadata
from millstream.groups.settings import ConsumerSettings
from millstream.model.ids import GroupId, InstanceId, MemberEpoch, MemberId
from millstream.wire.primitives import MalformedFrame

Protocols = Mapping[str, Sequence[tuple[str, bytes]]]
"""By member id: its assignors with their subscriptions, in the order of its preference."""

STANDARD_ASSIGNORS: Final = frozenset(("range", "roundrobin", "sticky", "cooperative-sticky"))
"""The assignors of all clients. The user data that they add to an assignment can be dropped:
librdkafka only echoes the member's own, and no client reads it (Kafka refuses the upgrade then, and
the new member fails)."""

NO_PROTOCOLS: Final[Protocols] = MappingProxyType({})


def upgrade_entries(
    group_id: GroupId,
    value: GroupMetadataValue,
    topics: TopicsView,
    settings: ConsumerSettings,
    protocols: Protocols = NO_PROTOCOLS,
) -> list[Entry]:
    """The entries that convert a classic group with members to a consumer group.

    `value` is the group's record as it would be written now; it has only one assignor of each
    member, `protocols` has all. Raises GroupNotFound if the upgrade is not allowed: that is what
    Kafka answers to a member that joins with the other protocol.
    """
    _check_upgrade(group_id, value, settings)
    taken: dict[UUID, set[int]] = {}
    try:
        members = [_upgrade_member(one, value, topics, protocols, taken) for one in value.members]
    except MalformedFrame:
        raise _upgrade_error(group_id, "the embedded consumer protocol is malformed") from None
    epoch = value.generation
    hashed = metadata_hash({name for one in members for name in one.topic_names}, topics)
    return [
        Entry(keys.ClassicGroupKey(group_id), None),
        *(entries.member_metadata(group_id, one) for one in members),
        entries.group_epoch(group_id, epoch, hashed),
        *(entries.target_member(group_id, one.member_id, _partitions(one)) for one in members),
        entries.target_epoch(group_id, epoch, 0),
        *(entries.current_assignment(group_id, one) for one in members),
    ]


def _check_upgrade(
    group_id: GroupId, value: GroupMetadataValue, settings: ConsumerSettings
) -> None:
    if not settings.migration_policy.may_upgrade:
        raise _upgrade_error(group_id, "online upgrade is disabled")
    if value.protocol_type != PROTOCOL_TYPE:
        raise _upgrade_error(group_id, "the group does not use the consumer embedded protocol")
    if len(value.members) > settings.consumer_group_size_max:
        raise _upgrade_error(group_id, "the group size exceeds the consumer group maximum size")


def _upgrade_error(group_id: GroupId, why: str) -> GroupNotFound:
    return GroupNotFound(
        f"Cannot upgrade classic group {group_id} to consumer group because {why}."
    )


def _upgrade_member(
    member: MemberMetadata,
    value: GroupMetadataValue,
    topics: TopicsView,
    protocols: Protocols,
    taken: dict[UUID, set[int]],
) -> ConsumerMember:
    known = protocols.get(member.member_id) or ((value.protocol or "", bytes(member.subscription)),)
    subscription = decode_subscription(member.subscription or known[0][1])
    assignment = decode_assignment(member.assignment)
    if assignment.user_data and value.protocol not in STANDARD_ASSIGNORS:
        raise GroupNotFound(
            "Cannot upgrade the classic group to a consumer group because an unsupported custom "
            "assignor is in use. Switch to a default assignor before re-attempting the upgrade."
        )
    owned: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions in by_topic_id(assignment.assigned_partitions, topics).items():
        # The assignment was made by a client: it may give one partition to two members (I-27).
        free = partitions - taken.setdefault(topic_id, set())
        taken[topic_id] |= free
        if free:
            owned[topic_id] = dict.fromkeys(sorted(free), value.generation)
    instance_id = member.group_instance_id
    return ConsumerMember(
        member_id=MemberId(member.member_id),
        instance_id=None if instance_id is None else InstanceId(instance_id),
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=_rebalance_timeout(member),
        topic_names=frozenset(subscription.topics),
        classic=ClassicFacts(
            session_timeout_ms=member.session_timeout,
            protocols=tuple((name, bytes(metadata)) for name, metadata in known),
        ),
        member_epoch=MemberEpoch(value.generation),
        previous_epoch=MemberEpoch(value.generation),
        state=MemberState.STABLE,
        assigned=owned,
    )


def _rebalance_timeout(member: MemberMetadata) -> int:
    return member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout


def _partitions(member: ConsumerMember) -> Assignment:
    return {topic_id: frozenset(partitions) for topic_id, partitions in member.assigned.items()}


def downgrade_entries(
    state: GroupState,
    topics: TopicsView,
    *,
    wall_ms: int,
    leaving: Sequence[ConsumerMember] = (),
    joining: ConsumerMember | None = None,
) -> list[Entry]:
    """The entries that make a classic group of the remaining members, all of which are classic.

    `joining` replaces a static member; the entries for that have been written before. Members are
    written with the partitions they own, including those they have yet to revoke, and not (as in
    Kafka) with their target: if a member of the consumer protocol joins before they have rejoined,
    the group is converted again, and a partition that one of them still reads must not be free
    then (I-27).
    """
    replaced = None if joining is None else state.static_member(joining.instance_id)
    gone = {one.member_id for one in leaving}
    staying: list[tuple[ConsumerMember, Assignment]] = []
    written = []
    for member in state.members.values():
        is_replaced = replaced is not None and member.member_id == replaced.member_id
        now = joining if is_replaced and joining is not None else member
        written.append(now.member_id)
        if member.member_id not in gone:
            staying.append((now, _held_partitions(now)))
    return [
        *entries.group_tombstones(state.group_id, written, state.regexes),
        Entry(
            keys.ClassicGroupKey(state.group_id), _classic_value(state, staying, topics, wall_ms)
        ),
    ]


def _held_partitions(member: ConsumerMember) -> Assignment:
    """All partitions that it may be reading."""
    held: dict[UUID, frozenset[int]] = {}
    for owned in (member.assigned, member.revoking):
        for topic_id, partitions in owned.items():
            held[topic_id] = held.get(topic_id, frozenset()) | frozenset(partitions)
    return held


def _classic_value(
    state: GroupState,
    staying: Sequence[tuple[ConsumerMember, Assignment]],
    topics: TopicsView,
    wall_ms: int,
) -> GroupMetadataValue:
    protocol = _select_protocol([member for member, _ in staying])
    return GroupMetadataValue(
        protocol_type=PROTOCOL_TYPE,
        generation=state.epoch,
        protocol=protocol,
        leader=staying[0][0].member_id,
        current_state_timestamp=wall_ms,
        members=[_classic_member(one, protocol, held, topics) for one, held in staying],
    )


def _classic_member(
    member: ConsumerMember, protocol: str, held: Assignment, topics: TopicsView
) -> MemberMetadata:
    facts = member.classic or ClassicFacts(session_timeout_ms=0, protocols=())
    subscription = dict(facts.protocols).get(protocol, b"")
    return MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=facts.session_timeout_ms,
        subscription=subscription,
        assignment=encode_assignment(held, topics, subscription),
    )


def _select_protocol(members: Sequence[ConsumerMember]) -> str:
    """Of the protocols that all members support, the one that most of them prefer."""
    lists = [[name for name, _ in one.classic.protocols] for one in members if one.classic]
    common = set(lists[0]).intersection(*lists)
    votes = Counter(next(name for name in names if name in common) for names in lists if common)
    return min(votes, key=lambda name: (-votes[name], name)) if votes else lists[0][0]
