"""From a request to a change: every rule that ZooKeeper has for writes, in ZooKeeper's order."""

from typing import Final

from millstream.coordination.keeper.changes import (
    Change,
    CreateNode,
    DeleteNode,
    SetNode,
    SetNodeAcl,
)
from millstream.coordination.keeper.limits import DATA_BYTES_MAX
from millstream.coordination.keeper.protocol import Code, KeeperError, Permission
from millstream.coordination.keeper.requests import (
    Acl,
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


def change_of(state: State, request: WriteRequest) -> Change | None:
    """What the request would change, None for a check that passed; raises KeeperError."""
    match request:
        case CreateRequest():
            return _create(state, request)
        case DeleteRequest(path, version):
            return _delete(state, path, version)
        case SetDataRequest(path, data, version):
            node = _existing(state, path, Permission.WRITE)
            _check_room(state, len(data or b"") - len(node.data or b""))
            _check_version(node.version, version)
            return SetNode(path, data)
        case CheckRequest(path, version):
            _check_version(_existing(state, path, Permission.READ).version, version)
            return None
        case SetAclRequest(path, acl, version):
            node = _existing(state, path, Permission.ADMIN)
            checked = _checked_acl(acl)
            _check_version(node.acl_version, version)
            return SetNodeAcl(path, checked)


def _create(state: State, request: CreateRequest) -> CreateNode:
    if request.flags not in _FLAGS:
        raise KeeperError(Code.BAD_ARGUMENTS)
    kind = NodeKind(request.flags)
    parent_path, slash, _ = request.path.rpartition("/")
    if not slash or "\0" in request.path:
        raise KeeperError(Code.BAD_ARGUMENTS)
    acl = _checked_acl(request.acl)
    parent = state.nodes.get(parent_path or "/")
    if parent is None:
        raise KeeperError(Code.NO_NODE)
    check_allowed(parent, Permission.CREATE)
    path = request.path
    if kind.is_sequential:
        path += f"{parent.created_children:010d}"
    if problem_of(path) is not None:
        raise KeeperError(Code.BAD_ARGUMENTS)
    if path in state.nodes:
        raise KeeperError(Code.NODE_EXISTS)
    if parent.owner:
        raise KeeperError(Code.NO_CHILDREN_FOR_EPHEMERALS)
    _check_room(state, size_of(path, request.data))
    return CreateNode(path, request.data, acl, kind.is_ephemeral)


def _delete(state: State, path: str, version: int) -> DeleteNode:
    parent_path, slash, _ = path.rpartition("/")
    if not slash or "\0" in path or path in SPECIAL_PATHS:
        raise KeeperError(Code.BAD_ARGUMENTS)
    parent = state.nodes.get(parent_path or "/")
    if parent is None:
        raise KeeperError(Code.NO_NODE)
    check_allowed(parent, Permission.DELETE)
    node = state.nodes.get(path)
    if node is None:
        raise KeeperError(Code.NO_NODE)
    _check_version(node.version, version)
    if node.children:
        raise KeeperError(Code.NOT_EMPTY)
    return DeleteNode(path)


def _existing(state: State, path: str, permission: Permission) -> Node:
    if problem_of(path) is not None:
        raise KeeperError(Code.BAD_ARGUMENTS)
    node = state.nodes.get(path)
    if node is None:
        raise KeeperError(Code.NO_NODE)
    check_allowed(node, permission)
    return node


def check_allowed(node: Node, *permissions: Permission) -> None:
    """Any of the permissions is enough; every entry of a list is for all clients."""
    wanted = sum(permissions)
    if not any(entry.permissions & wanted for entry in node.acl):
        raise KeeperError(Code.NO_AUTH)


def _check_version(actual: int, expected: int) -> None:
    if expected not in (ANY_VERSION, actual):
        raise KeeperError(Code.BAD_VERSION)


def _check_room(state: State, growth_bytes: int) -> None:
    if growth_bytes > 0 and state.size_bytes + growth_bytes > DATA_BYTES_MAX:
        raise KeeperError(Code.QUOTA_EXCEEDED)


def _checked_acl(acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
    """Only lists open to all clients: keeping others without enforcing them would be a false
    promise.
    """
    unique = tuple(dict.fromkeys(acl))
    if not unique or any((one.scheme, one.identity) != ("world", "anyone") for one in unique):
        raise KeeperError(Code.INVALID_ACL)
    return unique
