"""From a request to a change: every rule that ZooKeeper has for writes, in ZooKeeper's order."""

from typing import Final

from millstream.coordination.keeper.access import Identities, check_allowed, checked_acl
from millstream.coordination.keeper.changes import (
    Change,
    CreateNode,
    DeleteNode,
    SetNode,
    SetNodeAcl,
)
from millstream.coordination.keeper.clients import Client
from millstream.coordination.keeper.limits import DATA_BYTES_MAX, DATA_BYTES_PER_ADDRESS_MAX
from millstream.coordination.keeper.protocol import Code, KeeperError, Permission
from millstream.coordination.keeper.requests import (
    CheckRequest,
    CreateRequest,
    DeleteRequest,
    SetAclRequest,
    SetDataRequest,
    WriteRequest,
)
from millstream.coordination.keeper.state import SPECIAL_PATHS, Node, State, size_of
from millstream.coordination.paths import problem_of
from millstream.coordination.port import ANY_VERSION, NodeKind

_FLAGS: Final = tuple(kind.value for kind in NodeKind)


def change_of(state: State, request: WriteRequest, client: Client) -> Change | None:
    """What the request would change, None for a check that passed; raises KeeperError."""
    identities = client.identities
    match request:
        case CreateRequest():
            return _create(state, request, client)
        case DeleteRequest(path, version):
            return _delete(state, path, version, identities)
        case SetDataRequest(path, data, version):
            node = _existing(state, path, identities, Permission.WRITE)
            _check_room(state, client, path, size_of(path, data, node.acl), node)
            _check_version(node.version, version)
            return SetNode(path, data)
        case CheckRequest(path, version):
            node = _existing(state, path, identities, Permission.READ)
            _check_version(node.version, version)
            return None
        case SetAclRequest(path, acl, version):
            if problem_of(path) is not None:
                raise KeeperError(Code.BAD_ARGUMENTS)
            checked = checked_acl(acl, identities)
            node = _existing(state, path, identities, Permission.ADMIN)
            _check_version(node.acl_version, version)
            _check_room(state, client, path, size_of(path, node.data, checked), node)
            return SetNodeAcl(path, checked)


def _create(state: State, request: CreateRequest, client: Client) -> CreateNode:
    if request.flags not in _FLAGS:
        raise KeeperError(Code.BAD_ARGUMENTS)
    kind = NodeKind(request.flags)
    parent_path, slash, _ = request.path.rpartition("/")
    if not slash or "\0" in request.path:
        raise KeeperError(Code.BAD_ARGUMENTS)
    acl = checked_acl(request.acl, client.identities)
    parent = state.nodes.get(parent_path or "/")
    if parent is None:
        raise KeeperError(Code.NO_NODE)
    check_allowed(parent, client.identities, Permission.CREATE)
    path = request.path
    if kind.is_sequential:
        path += f"{parent.created_children:010d}"
    if problem_of(path) is not None:
        raise KeeperError(Code.BAD_ARGUMENTS)
    if path in state.nodes:
        raise KeeperError(Code.NODE_EXISTS)
    if parent.owner:
        raise KeeperError(Code.NO_CHILDREN_FOR_EPHEMERALS)
    _check_room(state, client, path, size_of(path, request.data, acl))
    return CreateNode(path, request.data, acl, kind.is_ephemeral)


def _delete(state: State, path: str, version: int, identities: Identities) -> DeleteNode:
    parent_path, slash, _ = path.rpartition("/")
    if not slash or "\0" in path or path in SPECIAL_PATHS:
        raise KeeperError(Code.BAD_ARGUMENTS)
    parent = state.nodes.get(parent_path or "/")
    if parent is None:
        raise KeeperError(Code.NO_NODE)
    check_allowed(parent, identities, Permission.DELETE)
    node = state.nodes.get(path)
    if node is None:
        raise KeeperError(Code.NO_NODE)
    _check_version(node.version, version)
    if node.children:
        raise KeeperError(Code.NOT_EMPTY)
    return DeleteNode(path)


def _existing(state: State, path: str, identities: Identities, permission: Permission) -> Node:
    if problem_of(path) is not None:
        raise KeeperError(Code.BAD_ARGUMENTS)
    node = state.nodes.get(path)
    if node is None:
        raise KeeperError(Code.NO_NODE)
    check_allowed(node, identities, permission)
    return node


def _check_version(actual: int, expected: int) -> None:
    if expected not in (ANY_VERSION, actual):
        raise KeeperError(Code.BAD_VERSION)


def _check_room(
    state: State, client: Client, path: str, size_bytes: int, node: Node | None = None
) -> None:
    """For a node of this size, instead of the one that is there. What needs no more room may always
    be written: a full server must be able to recover.
    """
    freed_bytes = 0 if node is None else node.size_bytes(path)
    growth_bytes = size_bytes - freed_bytes
    if growth_bytes <= 0:
        return
    is_own = node is not None and node.address == client.address
    own_bytes = state.bytes_from.get(client.address, 0) + size_bytes - freed_bytes * is_own
    is_full = state.size_bytes + growth_bytes > DATA_BYTES_MAX
    if is_full or own_bytes > DATA_BYTES_PER_ADDRESS_MAX:
        raise KeeperError(Code.QUOTA_EXCEEDED)
