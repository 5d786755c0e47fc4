"""Who may commit and fetch offsets of a group (I-28).

A member commits in its own epoch. An epoch behind it is accepted too, but only for partitions that
the member has had since then without a break (KIP-1251): its commit may have been on the way when
its heartbeat brought it into the next epoch. So a member never overwrites what another one, who had
the partition in between, has committed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from millstream.groups.consumer.core import Core
from millstream.groups.consumer.leave import member_of
from millstream.groups.consumer.member import ConsumerMember
from millstream.groups.errors import (
    GroupRefused,
    IllegalGeneration,
    StaleMemberEpoch,
    UnsupportedCommitVersion,
)
from millstream.wire.fields import NO_UUID

COMMIT_VERSION_MIN = 9
"""The first OffsetCommit that has the member epoch."""

PartitionCheck = Callable[[str, UUID, int], None]
"""Raises StaleMemberEpoch (or IllegalGeneration) for a topic's name, id (or the zero id) and
partition whose offset the member may not commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """Whose commit it says it is."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    is_transactional: bool = False
    version: int = COMMIT_VERSION_MIN
    """Of OffsetCommit; TxnOffsetCommit has epochs in all its versions."""


def check_commit(core: Core, who: Committer) -> PartitionCheck:
    """What each partition of the commit is to be checked with; raises if all are refused."""
    if who.member_epoch < 0 and not core.state.members:
        return _anything
    is_nobody = who.member_epoch == -1 and not who.member_id and who.instance_id is None
    if who.is_transactional and is_nobody:
        return _anything
    member = member_of(core, who.member_id)
    is_classic = member.classic is not None
    if not who.is_transactional and not is_classic and who.version < COMMIT_VERSION_MIN:
        raise UnsupportedCommitVersion
    if who.member_epoch == member.member_epoch:
        return _anything
    if who.member_epoch > member.member_epoch:
        raise _wrong_epoch(member, f"{who.member_epoch} is newer than {member.member_epoch}")

    def check(topic: str, topic_id: UUID, partition: int) -> None:
        facts = core.topics.by_name(topic) if topic_id == NO_UUID else None
        given = member.given_epoch(facts.topic_id if facts else topic_id, partition)
        if given is None or who.member_epoch < given:
            raise _wrong_epoch(
                member,
                f"{topic}-{partition} has not been the member's since epoch {who.member_epoch}",
            )

    return check


def check_fetch(core: Core, member_id: str | None, member_epoch: int) -> None:
    """A member reads offsets in its own epoch; without one, anybody may."""
    if member_id is None and member_epoch < 0:
        return
    member = member_of(core, member_id or "")
    if member_epoch != member.member_epoch:
        raise _wrong_epoch(
            member, f"{member_epoch} does not match the expected epoch {member.member_epoch}"
        )


def _anything(topic: str, topic_id: UUID, partition: int) -> None:
    """No check."""


def _wrong_epoch(member: ConsumerMember, why: str) -> GroupRefused:
    if member.classic is not None:
        return IllegalGeneration(f"Generation: {why}.")
    return StaleMemberEpoch(f"Member epoch: {why}.")
