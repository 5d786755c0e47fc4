"""Writes that are tried again after a lost connection, and end on proof only.

A request whose answer was lost may have been carried out. Trying again blindly would take one's
own success for somebody else's; giving up would leave a node nobody knows of. What is there
afterwards tells: whose session owns the node, or which version and data it has.
"""

from millstream.coordination.errors import BadVersion, ConnectionLost, NodeExists, NoNode
from millstream.coordination.port import ANY_VERSION, Created, NodeData, NodeKind, NodeStat, Session
from millstream.model.invariant import invariant


async def create_surely(
    session: Session, path: str, data: bytes = b"", *, kind: NodeKind = NodeKind.PERSISTENT
) -> Created:
    """Create the node, or raise NodeExists when somebody else has; raises SessionLost.

    An ephemeral node of our session is ours. A persistent one counts as ours when the answer to
    our own attempt was lost and it has our data, unchanged: then it makes no difference.
    """
    invariant(not kind.is_sequential, "a sequential node has no name to look for", path=path)
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
    found = await read_surely(session, path)
    if found is None:
        return None
    if kind.is_ephemeral:
        is_ours = found.stat.owner == session.session_id
    else:
        is_ours = found.data == data and found.stat.version == 0
    return Created(path, found.stat) if is_ours else None


async def set_surely(session: Session, path: str, data: bytes, *, version: int) -> NodeStat:
    """Change the node from `version` to the next, or raise BadVersion when somebody else has.

    The version makes a second attempt harmless. If the node is one version further and has our
    data after a lost answer, that was us (or somebody who wrote the same, which is as good).
    """
    invariant(version != ANY_VERSION, "without a version nothing can be proved", path=path)
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
            found = await read_surely(session, path)
            if found is None or found.data != data or found.stat.version != version + 1:
                raise
            return found.stat


async def delete_surely(session: Session, path: str, *, version: int) -> None:
    """Delete the node; that it is gone after a lost answer is the proof."""
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


async def read_surely(session: Session, path: str) -> NodeData | None:
    """As new as everything committed before, asked until there is an answer; None if absent."""
    while True:
        try:
            await session.sync(path)
            return await session.get(path)
        except NoNode:
            return None
        except ConnectionLost:
            await session.connected()
