"""Whether a request may commit, fetch or delete offsets of a classic group.

A group without members accepts commits of any client that does not claim to be a member: that is
how consumers with manual assignment, and administrators, store their offsets.
Invariants: I-28.
"""

from typing import NamedTuple

from millstream.groups.classic.core import Core
from millstream.groups.classic.states import GroupState
from millstream.groups.classic.subscriptions import CONSUMER_PROTOCOL
from millstream.groups.errors import (
    GroupNotEmpty,
    GroupNotFound,
    IllegalGeneration,
    RebalanceInProgress,
    UnknownMember,
)
from millstream.model.ids import NO_GENERATION, GenerationId, InstanceId, MemberId
from millstream.shards.errors import CoordinatorNotAvailable


class Committer(NamedTuple):
    """The identity that a commit request claims."""

    member_id: MemberId = MemberId("")
    generation_id: GenerationId = NO_GENERATION
    instance_id: InstanceId | None = None
    is_transactional: bool = False
    """TxnOffsetCommit: its older versions do not name the member, and the transaction decides, not
    the state of the group."""


def check_commit(core: Core, committer: Committer, now_ms: int) -> None:
    """Refuse the commit, or count it as a heartbeat of the member."""
    if core.state is GroupState.DEAD:
        raise CoordinatorNotAvailable
    if committer.generation_id < 0 and core.state is GroupState.EMPTY:
        return
    claims_membership = (
        committer.generation_id >= 0
        or committer.member_id != ""
        or committer.instance_id is not None
    )
    if not claims_membership:
        if not committer.is_transactional:
            raise UnknownMember
        return
    member = core.check_member(committer.member_id, committer.instance_id)
    if committer.generation_id != core.generation_id:
        raise IllegalGeneration
    if committer.is_transactional:
        return
    if core.state is GroupState.COMPLETING:
        # It knows the new generation but not its assignment: its commit is of the old one.
        raise RebalanceInProgress
    core.touch(member, now_ms)


def check_fetch(core: Core) -> None:
    if core.state is GroupState.DEAD:
        raise GroupNotFound


def check_offset_delete(core: Core) -> None:
    """Subscribed topics are known only for consumers; other groups must be empty."""
    check_fetch(core)
    if core.state is not GroupState.EMPTY and core.protocol_type != CONSUMER_PROTOCOL:
        raise GroupNotEmpty


def check_delete(core: Core) -> None:
    check_fetch(core)
    if core.state is not GroupState.EMPTY:
        raise GroupNotEmpty
