"""Everything a restart must recover: the tree of nodes and the sessions.

Changes are made through a `Draft`, which can be undone as long as it was not committed: a multi
checks each of its operations against what the ones before it did.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from millstream.coordination.keeper.changes import (
    Change,
    CloseSession,
    CreateNode,
    DeleteNode,
    OpenSession,
    SetNode,
    SetNodeAcl,
    Txn,
)
from millstream.coordination.keeper.limits import ACL_ENTRY_BYTES, ACLS_SHARED_MAX, NODE_BYTES
from millstream.coordination.keeper.protocol import OPEN_PERMISSIONS, Event
from millstream.coordination.keeper.requests import Acl
from millstream.coordination.paths import ROOT, name_of, parent_of
from millstream.coordination.port import NodeStat
from millstream.model.ids import NO_SESSION, SessionId, Zxid
from millstream.model.invariant import invariant

OPEN_ACL: Final = (Acl(OPEN_PERMISSIONS, "world", "anyone"),)
SPECIAL_PATHS: Final = (ROOT, "/zookeeper", "/zookeeper/config", "/zookeeper/quota")
"""They always exist, as in ZooKeeper."""

NO_ZXID: Final = Zxid(0)
_INT_SPAN: Final = 1 << 32
_INT_MAX: Final = (1 << 31) - 1


@dataclass(slots=True)
class Node:
    """One node of the tree."""

    data: bytes | None
    acl: tuple[Acl, ...] = OPEN_ACL
    czxid: Zxid = NO_ZXID
    mzxid: Zxid = NO_ZXID
    pzxid: Zxid = NO_ZXID
    created_ms: int = 0
    modified_ms: int = 0
    version: int = 0
    acl_version: int = 0
    created_children: int = 0
    """Children ever created: the number of the next sequential one."""
    owner: SessionId = NO_SESSION
    address: str = field(default="", compare=False)
    """Where it was last written from; "" before the start of the server: the files do not say."""
    children: set[str] = field(default_factory=set)

    def size_bytes(self, path: str) -> int:
        """As counted towards the limit."""
        return size_of(path, self.data, self.acl)

    def stat(self) -> NodeStat:
        return NodeStat(
            czxid=self.czxid,
            mzxid=self.mzxid,
            created_ms=self.created_ms,
            modified_ms=self.modified_ms,
            version=self.version,
            # Every child was created, and those that are not there any more were deleted.
            children_version=as_int(self.created_children * 2 - len(self.children)),
            acl_version=self.acl_version,
            owner=self.owner,
            data_length=len(self.data or b""),
            children_count=len(self.children),
            pzxid=self.pzxid,
        )


class Trigger(NamedTuple):
    """What watches may wait for."""

    kind: Event
    path: str


class State:
    """The tree and the sessions, at one zxid."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {path: Node(b"") for path in SPECIAL_PATHS}
        self.nodes[ROOT].children = {"zookeeper"}
        self.nodes["/zookeeper"].children = {"config", "quota"}
        self.sessions: dict[SessionId, int] = {}
        """Their time-outs in milliseconds."""
        self.ephemerals: dict[SessionId, set[str]] = {}
        self.last_zxid = NO_ZXID
        self.size_bytes = sum(size_of(path, b"", OPEN_ACL) for path in SPECIAL_PATHS)
        self.bytes_from: dict[str, int] = {}
        """Of nodes that each address was the last to write since the start of the server."""
        self._shared: dict[tuple[Acl, ...], tuple[Acl, ...]] = {}

    def shared(self, acl: tuple[Acl, ...]) -> tuple[Acl, ...]:
        """An equal list, which other nodes have already: the cluster's would take hundreds of bytes
        in each of them.
        """
        found = self._shared.get(acl)
        if found is not None:
            return found
        if len(self._shared) >= ACLS_SHARED_MAX:
            self._shared.clear()
        self._shared[acl] = acl
        return acl

    def grow(self, node: Node, growth_bytes: int) -> None:
        """Count a node that comes, changes or goes."""
        self.size_bytes += growth_bytes
        if node.address:
            total_bytes = self.bytes_from.pop(node.address, 0) + growth_bytes
            if total_bytes:
                self.bytes_from[node.address] = total_bytes

    def add_loaded(self, path: str, node: Node) -> None:
        """A node of a snapshot; its parent came before it."""
        old = self.nodes.get(path)
        if old is not None:
            self.size_bytes -= old.size_bytes(path)
            node.children = old.children
        node.acl = self.shared(node.acl)
        self.nodes[path] = node
        self.size_bytes += node.size_bytes(path)
        if path != ROOT:
            self.nodes[parent_of(path)].children.add(name_of(path))
        if node.owner != NO_SESSION:
            self.ephemerals.setdefault(node.owner, set()).add(path)

    def replay(self, txn: Txn) -> None:
        """What the log says; raises KeyError when it does not fit."""
        draft = Draft(self, time_ms=txn.time_ms, session_id=txn.session_id)
        for change in txn.changes:
            draft.add(change)
        draft.commit()


class Draft:
    """Changes that are visible at once and may still be taken back."""

    def __init__(
        self, state: State, *, time_ms: int, session_id: SessionId, address: str = ""
    ) -> None:
        self._state = state
        self.address = address
        self.zxid = Zxid(state.last_zxid + 1)
        self._time_ms = time_ms
        self.session_id = session_id
        self._changes: list[Change] = []
        self._undo: list[Callable[[], object]] = []
        self.triggers: list[Trigger] = []

    def commit(self) -> Txn | None:
        """Final now; None when nothing was changed."""
        if not self._changes:
            return None
        invariant(self._state.last_zxid == self.zxid - 1, "two drafts at once", zxid=self.zxid)
        self._state.last_zxid = self.zxid
        return Txn(self.zxid, self._time_ms, self.session_id, tuple(self._changes))

    def undo(self) -> None:
        for step in reversed(self._undo):
            step()

    def add(self, change: Change) -> None:
        """Make a change that was checked."""
        self._changes.append(change)
        match change:
            case CreateNode():
                self._create(change)
            case DeleteNode(path):
                self._delete(path)
            case SetNode(path, data):
                self._set(path, data)
            case SetNodeAcl(path, acl):
                self._set_acl(path, acl)
            case OpenSession(timeout_ms):
                self._state.sessions[self.session_id] = timeout_ms
            case CloseSession():
                self._close_session()

    def _create(self, change: CreateNode) -> None:
        state, path = self._state, change.path
        parent_path, name = parent_of(path), name_of(path)
        parent = state.nodes[parent_path]
        owner = self.session_id if change.is_ephemeral else NO_SESSION
        before = (parent.created_children, parent.pzxid)
        node = state.nodes[path] = Node(
            change.data,
            state.shared(change.acl),
            czxid=self.zxid,
            mzxid=self.zxid,
            pzxid=self.zxid,
            created_ms=self._time_ms,
            modified_ms=self._time_ms,
            owner=owner,
            address=self.address,
        )
        parent.children.add(name)
        parent.created_children = as_int(parent.created_children + 1)
        parent.pzxid = self.zxid
        state.grow(node, node.size_bytes(path))
        if owner != NO_SESSION:
            state.ephemerals.setdefault(owner, set()).add(path)

        def undo() -> None:
            del state.nodes[path]
            parent.children.discard(name)
            parent.created_children, parent.pzxid = before
            state.grow(node, -node.size_bytes(path))
            _forget_ephemeral(state, owner, path)

        self._undo.append(undo)
        self.triggers += [Trigger(Event.CREATED, path), Trigger(Event.CHILDREN, parent_path)]

    def _delete(self, path: str) -> None:
        state = self._state
        parent_path, name = parent_of(path), name_of(path)
        parent, node = state.nodes[parent_path], state.nodes[path]
        invariant(not node.children, "a node with children deleted", path=path)
        pzxid_before = parent.pzxid
        del state.nodes[path]
        parent.children.discard(name)
        parent.pzxid = self.zxid
        state.grow(node, -node.size_bytes(path))
        _forget_ephemeral(state, node.owner, path)

        def undo() -> None:
            state.nodes[path] = node
            parent.children.add(name)
            parent.pzxid = pzxid_before
            state.grow(node, node.size_bytes(path))
            if node.owner != NO_SESSION:
                state.ephemerals.setdefault(node.owner, set()).add(path)

        self._undo.append(undo)
        self.triggers += [Trigger(Event.DELETED, path), Trigger(Event.CHILDREN, parent_path)]

    def _set(self, path: str, data: bytes | None) -> None:
        state, node = self._state, self._state.nodes[path]
        before = (node.data, node.mzxid, node.modified_ms, node.version, node.address)
        state.grow(node, -node.size_bytes(path))
        node.data, node.mzxid, node.modified_ms = data, self.zxid, self._time_ms
        node.version, node.address = next_version(node.version), self.address
        state.grow(node, node.size_bytes(path))

        def undo() -> None:
            state.grow(node, -node.size_bytes(path))
            node.data, node.mzxid, node.modified_ms, node.version, node.address = before
            state.grow(node, node.size_bytes(path))

        self._undo.append(undo)
        self.triggers.append(Trigger(Event.CHANGED, path))

    def _set_acl(self, path: str, acl: tuple[Acl, ...]) -> None:
        state, node = self._state, self._state.nodes[path]
        before = (node.acl, node.acl_version, node.address)
        state.grow(node, -node.size_bytes(path))
        node.acl, node.acl_version = state.shared(acl), next_version(node.acl_version)
        node.address = self.address
        state.grow(node, node.size_bytes(path))

        def undo() -> None:
            state.grow(node, -node.size_bytes(path))
            node.acl, node.acl_version, node.address = before
            state.grow(node, node.size_bytes(path))

        self._undo.append(undo)

    def _close_session(self) -> None:
        """The only change of its transaction, and never undone."""
        for path in sorted(self._state.ephemerals.get(self.session_id, ())):
            self._delete(path)
        self._state.sessions.pop(self.session_id, None)


def size_of(path: str, data: bytes | None, acl: tuple[Acl, ...]) -> int:
    """The size of a node as counted towards the limit."""
    return NODE_BYTES + len(path) + len(data or b"") + ACL_ENTRY_BYTES * max(0, len(acl) - 1)


def next_version(version: int) -> int:
    """Never -1, which stands for any version."""
    following = as_int(version + 1)
    return 0 if following == -1 else following


def as_int(value: int) -> int:
    """As Java's int overflows."""
    return (value + _INT_MAX + 1) % _INT_SPAN - _INT_MAX - 1


def _forget_ephemeral(state: State, owner: SessionId, path: str) -> None:
    owned = state.ephemerals.get(owner)
    if owned is not None:
        owned.discard(path)
        if not owned:
            del state.ephemerals[owner]
