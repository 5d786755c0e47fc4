"""Who may commit, read and delete offsets of a classic group.

A group without members takes commits of anyone who does not claim to be one of it: that is how
consumers that assign themselves, and administrators, store their offsets.
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
    """Who a commit says it is of."""

    member_id: MemberId = MemberId("")
    generation_id: GenerationId = NO_GENERATION
    instance_id: InstanceId | None = None
    is_transactional: bool = False
    """TxnOffsetCommit: its older versions do not tell who they are, and it is the transaction,
    not the state of the group, that decides."""


def check_commit(core: Core, committer: Committer, now_ms: int) -> None:
    """Refuses it, or takes it as a sign of life of the member."""
    if core.state is GroupState.DEAD:
        raise CoordinatorNotAvailable
    if committer.generation_id < 0 and core.state is GroupState.EMPTY:
        return
    claims_to_be_one = (
        committer.generation_id >= 0
        or committer.member_id != ""
        or committer.instance_id is not None
    )
    if not claims_to_be_one:
        if not committer.is_transactional:
            raise UnknownMember
        return
    member = core.check_member(committer.member_id, committer.instance_id)
    if committer.generation_id != core.generation_id:
        raise IllegalGeneration
    if committer.is_transactional:
        return
    if core.state is GroupState.COMPLETING:
        # It knows the new generation and not yet its part of it: what it commits is of the old.
        raise RebalanceInProgress
    core.touch(member, now_ms)


def check_fetch(core: Core) -> None:
    if core.state is GroupState.DEAD:
        raise GroupNotFound


def check_offset_delete(core: Core) -> None:
    """Of consumers the topics are known that are in use; of others nothing is."""
    check_fetch(core)
    if core.state is not GroupState.EMPTY and core.protocol_type != CONSUMER_PROTOCOL:
        raise GroupNotEmpty


def check_delete(core: Core) -> None:
    check_fetch(core)
    if core.state is not GroupState.EMPTY:
        raise GroupNotEmpty
