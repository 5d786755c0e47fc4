"""Writes that are retried after a lost connection, and end only on proof of their outcome.

A request whose answer was lost may have been carried out. A blind retry would take our own success
for another client's; giving up would leave an unknown node behind. The node's state afterwards is
the proof: the session that owns it, or its version and data.
"""

import asyncio
from collections.abc import Sequence

from millstream.coordination.errors import (
    BadVersion,
    ConnectionLost,
    MultiFailed,
    MultiUnproved,
    NodeExists,
    NoNode,
)
from millstream.coordination.port import (
    ANY_VERSION,
    Check,
    Create,
    Created,
    MultiResult,
    NodeData,
    NodeKind,
    NodeStat,
    Operation,
    Session,
    Set,
)
from millstream.model.ids import Zxid
from millstream.model.invariant import invariant


async def create_with_proof(
    session: Session, path: str, data: bytes = b"", *, kind: NodeKind = NodeKind.PERSISTENT
) -> Created:
    """Create the node, or raise NodeExists when another client has; raises SessionLost.

    An ephemeral node of our session is ours. A persistent one is treated as ours when the answer to
    our own attempt was lost and it has our data, unchanged: then it makes no difference.
    """
    invariant(not kind.is_sequential, "a sequential node has no known name", path=path)
    is_in_doubt = False
    while True:
        try:
            return await session.create(path, data, kind=kind)
        except ConnectionLost as error:
            is_in_doubt |= error.is_in_doubt
            await session.connected()
        except NodeExists:
            found = await _ours(session, path, data, kind) if is_in_doubt else None
            if found is None:
                raise
            return found


async def _ours(session: Session, path: str, data: bytes, kind: NodeKind) -> Created | None:
    found = await read_latest(session, path)
    if found is None:
        return None
    if kind.is_ephemeral:
        is_ours = found.stat.owner == session.session_id
    else:
        is_ours = found.data == data and found.stat.version == 0
    return Created(path, found.stat) if is_ours else None


async def set_with_proof(session: Session, path: str, data: bytes, *, version: int) -> NodeStat:
    """Change the node from `version` to the next, or raise BadVersion when another client has.

    The version makes a second attempt harmless. If the node is one version further and has our data
    after a lost answer, that was our write (or an equal one, which is as good).
    """
    invariant(version != ANY_VERSION, "a set without a version cannot be proved", path=path)
    is_in_doubt = False
    while True:
        try:
            return await session.set(path, data, version=version)
        except ConnectionLost as error:
            is_in_doubt |= error.is_in_doubt
            await session.connected()
        except BadVersion:
            if not is_in_doubt:
                raise
            found = await read_latest(session, path)
            if found is None or found.data != data or found.stat.version != version + 1:
                raise
            return found.stat


async def delete_with_proof(session: Session, path: str, *, version: int) -> None:
    """Delete the node; after a lost answer its absence is the proof."""
    is_in_doubt = False
    while True:
        try:
            await session.delete(path, version=version)
        except ConnectionLost as error:
            is_in_doubt |= error.is_in_doubt
            await session.connected()
        except NoNode:
            if not is_in_doubt:
                raise
            return
        else:
            return


async def read_latest(session: Session, path: str) -> NodeData | None:
    """Read the node after a `sync`, retried until there is an answer; None if it does not exist."""
    while True:
        try:
            await session.sync(path)
            return await session.get(path)
        except NoNode:
            return None
        except ConnectionLost:
            await session.connected()


# -- several at once ---------------------------------------------------------------------------


async def multi_with_proof(session: Session, operations: Sequence[Operation]) -> list[MultiResult]:
    """All of them or none, retried after a lost connection; raises MultiFailed, SessionLost.

    A second attempt is harmless: a change names the version it is based on, so a multi that was
    carried out is refused when it is sent again. Then the nodes decide. If all are as the multi
    leaves them, changed by one and the same transaction, it was carried out: the results are
    derived from the nodes.

    A multi that begins with a `Check` is fenced, and a failed check raises MultiFailed with index 0
    whatever the outcome of an earlier attempt: another client is in charge and finds what was
    written. While the check holds no other client has changed what the multi changes, so there is
    always proof. Without one there may be none, because another client went on from what we did or
    did not do: MultiUnproved. Only behind such a check may a `Set` omit the version: it is
    idempotent.
    """
    effects = _effects(operations)
    is_in_doubt = False
    while True:
        try:
            return await session.multi(operations)
        except ConnectionLost as error:
            is_in_doubt |= error.is_in_doubt
            await session.connected()
        except MultiFailed as error:
            is_fence = error.index == 0 and isinstance(operations[0], Check)
            if not is_in_doubt or is_fence:
                raise
            return await _prove(session, operations, effects, error)


def _effects(operations: Sequence[Operation]) -> dict[str, Operation]:
    """The last operation on each node, which determines its final state."""
    effects: dict[str, Operation] = {}
    is_fenced = bool(operations) and isinstance(operations[0], Check)
    for one in operations:
        if isinstance(one, Check):
            continue
        is_repeatable = isinstance(one, Set) and one.version == ANY_VERSION and not is_fenced
        is_nameless = isinstance(one, Create) and one.kind.is_sequential
        is_provable = not is_repeatable and not is_nameless
        invariant(is_provable, "this operation cannot be proved", path=one.path)
        effects[one.path] = one
    return effects


async def _prove(
    session: Session,
    operations: Sequence[Operation],
    effects: dict[str, Operation],
    refused: MultiFailed,
) -> list[MultiResult]:
    """The results, if the multi was carried out when its answer was lost."""
    paths = list(effects)
    found = await asyncio.gather(*(read_latest(session, path) for path in paths))
    nodes = dict(zip(paths, found, strict=True))
    changed_at = {_changed_at(one, nodes[path]) for path, one in effects.items()} - {None}
    is_ours = all(_is_done(one, nodes[path], session) for path, one in effects.items())
    if is_ours and len(changed_at) <= 1:
        return [_result(one, nodes) for one in operations]
    if isinstance(operations[0], Check):
        raise refused  # no other client can have changed it: it was not carried out
    raise MultiUnproved(f"another client may have changed the nodes since: {refused}")


def _is_done(effect: Operation, found: NodeData | None, session: Session) -> bool:
    """Whether the node is as the operation leaves it."""
    match effect:
        case Create(data=data, kind=kind):
            if found is None:
                return False
            if kind.is_ephemeral:
                return found.stat.owner == session.session_id
            return found.data == data and found.stat.version == 0
        case Set(data=data, version=version):
            if found is None or found.data != data:
                return False
            return version in (ANY_VERSION, found.stat.version - 1)
        case _:
            return found is None


def _changed_at(effect: Operation, found: NodeData | None) -> Zxid | None:
    if found is None:
        return None
    return found.stat.czxid if isinstance(effect, Create) else found.stat.mzxid


def _result(operation: Operation, nodes: dict[str, NodeData | None]) -> MultiResult:
    match operation:
        case Create(path=path):
            return path
        case Set(path=path):
            found = nodes[path]
            return found.stat if found is not None else None
    return None
