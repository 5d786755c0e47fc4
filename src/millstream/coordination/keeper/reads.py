"""Requests that change no node: reading, and watching."""

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Final

from millstream.coordination.keeper import replies
from millstream.coordination.keeper.access import check_allowed, shown_acl
from millstream.coordination.keeper.clients import Client
from millstream.coordination.keeper.jute import pack_integer, pack_text, pack_texts
from millstream.coordination.keeper.protocol import Code, Event, KeeperError, Op, Permission
from millstream.coordination.keeper.requests import (
    PathRequest,
    ReadRequest,
    SetWatchesRequest,
    WatchRequest,
)
from millstream.coordination.keeper.state import State
from millstream.coordination.keeper.watches import ConnectionId, Mode, Table, WatchTable
from millstream.model.ids import SessionId

_ADD_MODES: Final = {0: Mode.PERSISTENT, 1: Mode.RECURSIVE}
_ALL_MODES: Final = Mode.ONCE | Mode.PERSISTENT | Mode.RECURSIVE


class WatcherType(IntEnum):
    """What REMOVE_WATCHES and CHECK_WATCHES mean."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    RECURSIVE = 5


def read(state: State, watches: WatchTable, client: Client, request: ReadRequest) -> bytes:
    """EXISTS, GET_DATA, GET_CHILDREN and GET_CHILDREN2."""
    op, path, watch = request
    connection = client.connection
    if "\0" in path:
        raise KeeperError(Code.BAD_ARGUMENTS)
    node = state.nodes.get(path)
    if node is not None:
        check_allowed(node, client.identities, Permission.READ)
    if op == Op.EXISTS and watch:
        watches.data.add(connection, path, Mode.ONCE)  # also for a node that is not there yet
    if node is None:
        raise KeeperError(Code.NO_NODE)
    if op == Op.EXISTS:
        return replies.stat(node.stat())
    if op == Op.GET_DATA:
        if watch:
            watches.data.add(connection, path, Mode.ONCE)
        return replies.data_and_stat(node.data, node.stat())
    if watch:
        watches.children.add(connection, path, Mode.ONCE)
    names = pack_texts(sorted(node.children))
    return names + replies.stat(node.stat()) if op == Op.GET_CHILDREN2 else names


def read_all(
    state: State,
    watches: WatchTable,
    client: Client,
    operations: Iterable[ReadRequest],
) -> bytes:
    """MULTI_READ: each operation succeeds or fails by itself."""
    results: list[replies.MultiResult] = []
    for operation in operations:
        try:
            results.append((operation.op, read(state, watches, client, operation)))
        except KeeperError as error:
            results.append(error.code)
    return replies.multi(results)


def read_path(state: State, client: Client, session_id: SessionId, request: PathRequest) -> bytes:
    """GET_ACL, SYNC, GET_EPHEMERALS and GET_ALL_CHILDREN_NUMBER."""
    op, path = request
    if op == Op.SYNC:
        # One server, and answers wait for everything before them: there is nothing to catch up.
        return pack_text(path)
    if op == Op.GET_EPHEMERALS:
        prefix = "" if path.strip() == "/" else path.strip()
        owned = sorted(state.ephemerals.get(session_id, ()))
        return pack_texts([one for one in owned if one.startswith(prefix)])
    node = state.nodes.get(path)
    if node is None:
        raise KeeperError(Code.NO_NODE)
    if op == Op.GET_ACL:
        check_allowed(node, client.identities, Permission.READ, Permission.ADMIN)
        return replies.acls_and_stat(shown_acl(node, client.identities), node.stat())
    check_allowed(node, client.identities, Permission.READ)
    below = "/" if path == "/" else path + "/"
    return pack_integer(sum(one.startswith(below) and one != "/" for one in state.nodes))


def change_watches(watches: WatchTable, connection: ConnectionId, request: WatchRequest) -> bytes:
    """ADD_WATCH, REMOVE_WATCHES and CHECK_WATCHES."""
    op, path, mode = request
    if op == Op.ADD_WATCH:
        if mode not in _ADD_MODES:
            raise KeeperError(Code.BAD_ARGUMENTS)
        watches.add_persistent(connection, path, _ADD_MODES[mode])
        return pack_integer(Code.OK)
    if mode not in tuple(WatcherType):
        raise KeeperError(Code.BAD_ARGUMENTS)
    found = False
    for table, modes in _tables_for(watches, mode):
        if op == Op.CHECK_WATCHES:
            found |= table.has(connection, path, modes)
        else:
            found |= table.remove(connection, path, modes)
    if not found:
        raise KeeperError(Code.NO_WATCHER)
    return b""


def _tables_for(watches: WatchTable, kind: int) -> list[tuple[Table, Mode]]:
    match kind:
        case WatcherType.CHILDREN:
            return [(watches.children, Mode.ONCE)]
        case WatcherType.DATA:
            return [(watches.data, Mode.ONCE)]
        case WatcherType.PERSISTENT:
            return [(watches.data, Mode.PERSISTENT), (watches.children, Mode.PERSISTENT)]
        case WatcherType.RECURSIVE:
            return [(watches.data, Mode.RECURSIVE)]
        case _:
            return [(watches.data, _ALL_MODES), (watches.children, _ALL_MODES)]


def restore_watches(
    state: State, watches: WatchTable, connection: ConnectionId, request: SetWatchesRequest
) -> Iterator[tuple[Event, str]]:
    """Restore the watches of a reconnected client; yields events for what happened meanwhile."""
    for path in request.data:
        node = state.nodes.get(path)
        if node is None:
            yield Event.DELETED, path
        elif node.mzxid > request.since:
            yield Event.CHANGED, path
        else:
            watches.data.add(connection, path, Mode.ONCE)
    for path in request.exists:
        if path in state.nodes:
            yield Event.CREATED, path
        else:
            watches.data.add(connection, path, Mode.ONCE)
    for path in request.children:
        node = state.nodes.get(path)
        if node is None:
            yield Event.DELETED, path
        elif node.pzxid > request.since:
            yield Event.CHILDREN, path
        else:
            watches.children.add(connection, path, Mode.ONCE)
    for path in request.persistent:
        watches.add_persistent(connection, path, Mode.PERSISTENT)
    for path in request.recursive:
        watches.add_persistent(connection, path, Mode.RECURSIVE)
