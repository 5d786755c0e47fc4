"""OffsetCommit (key 8), versions 2-10, and TxnOffsetCommit (key 28), versions 0-5.

v2-4 the client sets the retention of its offsets · v7 static members · v9 the member epoch of a
consumer group instead of the generation · v10 topics by id (KIP-848).
A commit is checked against the group as it is now and answered when the high watermark has passed
it. Commits without a member are accepted while the group has none; the first one creates the group.
Invariants: I-28, I-29.
"""

from typing import Any, Final

from millstream.groups.classic.group import ClassicGroup, Committer
from millstream.groups.consumer.commits import Committer as ConsumerCommitter
from millstream.groups.errors import (
    GroupNotFound,
    IllegalGeneration,
    InvalidGroupId,
    StaleMemberEpoch,
)
from millstream.groups.offsets.requests import CheckPartition, commit, commit_in_transaction
from millstream.groups.parts import Parts
from millstream.groups.records.entries import Entry, Producer
from millstream.groups.records.keys import OffsetKey
from millstream.model.ids import (
    NO_GENERATION,
    GenerationId,
    GroupId,
    InstanceId,
    MemberId,
    ProducerEpoch,
    ProducerId,
)
from millstream.shards.effects import Caller, Reply, Write
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest

ANONYMOUS: Final = Committer()
"""Of clients that commit without being a member."""

GROUP_NOT_FOUND_VERSION: Final = 9
"""Older clients know only ILLEGAL_GENERATION for an unknown group."""


def offset_commit(
    parts: Parts, caller: Caller, request: OffsetCommitRequest, *, now_ms: int
) -> None:
    """Raises GroupRefused for the whole request; too long metadata is refused by partition."""
    group_id = GroupId(request.group_id)
    by = ANONYMOUS
    if request.member_id or request.generation_id_or_member_epoch != NO_GENERATION:
        by = Committer(
            MemberId(request.member_id),
            GenerationId(request.generation_id_or_member_epoch),
            _instance(request.group_instance_id),
        )
    elif request.group_instance_id is not None:
        by = Committer(instance_id=InstanceId(request.group_instance_id))
    if by.generation_id >= 0 and group_id not in parts.groups:
        knows_not_found = caller.version >= GROUP_NOT_FOUND_VERSION
        raise GroupNotFound if knows_not_found else IllegalGeneration
    made = commit(
        request,
        wall_ms=parts.wall_ms,
        metadata_chars_max=parts.settings.offset_metadata_bytes_max,
        check=_check(parts, group_id, by, version=caller.version, now_ms=now_ms),
    )
    _write(parts, caller, made.entries, made.response)


def txn_offset_commit(
    parts: Parts, caller: Caller, request: TxnOffsetCommitRequest, *, now_ms: int
) -> None:
    """The offsets are pending until the transaction ends."""
    if not request.group_id:
        raise InvalidGroupId
    group_id = GroupId(request.group_id)
    by = Committer(
        MemberId(request.member_id),
        GenerationId(request.generation_id),
        _instance(request.group_instance_id),
        is_transactional=True,
    )
    if group_id not in parts.groups and by.generation_id >= 0:
        raise IllegalGeneration
    try:
        made = commit_in_transaction(
            request,
            wall_ms=parts.wall_ms,
            metadata_chars_max=parts.settings.offset_metadata_bytes_max,
            check=_check(parts, group_id, by, version=caller.version, now_ms=now_ms),
        )
    except StaleMemberEpoch as error:
        # Transactional producers have no other error for it.
        raise IllegalGeneration from error
    producer = Producer(ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch))
    _write(parts, caller, made.entries, made.response, producer)


def is_gatherable(write: Write) -> bool:
    """Whether it has only offsets of ordinary commits."""
    entries, _, ticket, _, producer = write
    if ticket is not None or producer is not None or not entries:
        return False
    for key, value in entries:  # noqa: SIM110 - a generator would cost more than all of it
        if type(key) is not OffsetKey or value is None:
            return False
    return True


def _instance(instance_id: str | None) -> InstanceId | None:
    return None if instance_id is None else InstanceId(instance_id)


def _check(
    parts: Parts, group_id: GroupId, by: Committer, *, version: int, now_ms: int
) -> CheckPartition | None:
    """Raise unless the committer may commit now (I-28); return the check of single partitions.

    An unknown group has no members.
    """
    group = parts.groups.get(group_id)
    if group is None:
        return None
    if isinstance(group, ClassicGroup):
        group.check_commit(by, now_ms)
        return None
    committer = ConsumerCommitter(
        member_id=by.member_id,
        member_epoch=by.generation_id,
        instance_id=by.instance_id,
        is_transactional=by.is_transactional,
        version=version,
    )
    return group.check_commit(committer)


def _write(
    parts: Parts,
    caller: Caller,
    entries: tuple[Entry, ...],
    response: Any,
    producer: Producer | None = None,
) -> None:
    """Respond when the entries are committed; without any, at once."""
    if not entries:
        parts.outbox.reply(caller, response)
        return
    parts.outbox.write(Write(entries, (Reply(caller.token, response),), producer=producer))
