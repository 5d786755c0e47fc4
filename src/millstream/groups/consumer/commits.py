"""Which members may commit and fetch offsets of a group (I-28).

A member commits in its own epoch. An older epoch is accepted too, but only for partitions that the
member has owned since then without interruption (KIP-1251): its commit may have been in flight when
its heartbeat moved it to the next epoch. So a member never overwrites what another member, which
owned the partition in between, has committed.
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
"""The first version of OffsetCommit that has the member epoch."""

PartitionCheck = Callable[[str, UUID, int], None]
"""Raises StaleMemberEpoch (or IllegalGeneration) for a topic's name, id (or the zero id) and
partition whose offset the member may not commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Committer:
    """The identity that a commit request claims."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    is_transactional: bool = False
    version: int = COMMIT_VERSION_MIN
    """Of OffsetCommit; TxnOffsetCommit has epochs in all its versions."""


def check_commit(core: Core, committer: Committer) -> PartitionCheck:
    """Return the check for each partition of the commit; raise if all are refused."""
    if committer.member_epoch < 0 and not core.state.members:
        return _accept_any
    is_anonymous = (
        committer.member_epoch == -1 and not committer.member_id and committer.instance_id is None
    )
    if committer.is_transactional and is_anonymous:
        return _accept_any
    member = member_of(core, committer.member_id)
    is_classic = member.classic is not None
    if not committer.is_transactional and not is_classic and committer.version < COMMIT_VERSION_MIN:
        raise UnsupportedCommitVersion
    if committer.member_epoch == member.member_epoch:
        return _accept_any
    if committer.member_epoch > member.member_epoch:
        raise _wrong_epoch(member, f"{committer.member_epoch} is newer than {member.member_epoch}")

    def check(topic: str, topic_id: UUID, partition: int) -> None:
        facts = core.topics.by_name(topic) if topic_id == NO_UUID else None
        assigned_in = member.assignment_epoch(facts.topic_id if facts else topic_id, partition)
        if assigned_in is None or committer.member_epoch < assigned_in:
            raise _wrong_epoch(
                member,
                f"{topic}-{partition} has not been the member's since epoch "
                f"{committer.member_epoch}",
            )

    return check


def check_fetch(core: Core, member_id: str | None, member_epoch: int) -> None:
    """A member fetches offsets in its own epoch; without member id and epoch, any client may."""
    if member_id is None and member_epoch < 0:
        return
    member = member_of(core, member_id or "")
    if member_epoch != member.member_epoch:
        raise _wrong_epoch(
            member, f"{member_epoch} does not match the expected epoch {member.member_epoch}"
        )


def _accept_any(topic: str, topic_id: UUID, partition: int) -> None:
    """No check."""


def _wrong_epoch(member: ConsumerMember, why: str) -> GroupRefused:
    if member.classic is not None:
        return IllegalGeneration(f"Generation: {why}.")
    return StaleMemberEpoch(f"Member epoch: {why}.")
