"""The port: what a broker uses of the coordination service, the keeper or ZooKeeper.

One `Session` is one session of the service. Unlike kazoo's client it does not reopen after it was
lost: code that acts for a session can never act for its successor by mistake.

Everything happens on the event loop that opened the session, in the order in which the service sent
it: a watch is called before the answer to a read that saw the change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, Protocol

from millstream.model.ids import NO_SESSION, SessionId, Zxid

ANY_VERSION: Final = -1
"""For `set` and `delete`: whatever the node's version is."""

MULTI_OPERATIONS_MAX: Final = 500
MULTI_BYTES_MAX: Final = 512 * 1024
"""A request of more than a megabyte closes the connection; larger changes are several multis."""


class SessionState(Enum):
    """The state of a session; LOST is final."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection. The session may be alive or expired, only the service knows: keep serving led
    partitions, change nothing (I-18)."""
    LOST = "lost"
    """The session is gone, and with it its ephemeral nodes and what depends on them."""


class NodeKind(Enum):
    """The lifetime of a node, and whether its name gets a number."""

    PERSISTENT = 0
    EPHEMERAL = 1
    """Deleted with the session that created it."""
    PERSISTENT_SEQUENTIAL = 2
    """Ten digits are added to the name, growing with every child of the parent."""
    EPHEMERAL_SEQUENTIAL = 3

    @property
    def is_ephemeral(self) -> bool:
        return bool(self.value & 1)

    @property
    def is_sequential(self) -> bool:
        return bool(self.value & 2)


class NodeStat(NamedTuple):
    """A node's metadata, in the order of the wire."""

    czxid: Zxid
    mzxid: Zxid
    created_ms: int
    modified_ms: int
    version: int
    children_version: int
    acl_version: int
    owner: SessionId
    data_length: int
    children_count: int
    pzxid: Zxid

    @property
    def is_ephemeral(self) -> bool:
        return self.owner != NO_SESSION


class Created(NamedTuple):
    """A new node; the path has the digits of a sequential one."""

    path: str
    stat: NodeStat


class NodeData(NamedTuple):
    """A node's content."""

    data: bytes
    stat: NodeStat


class NodeChildren(NamedTuple):
    """The names of a node's children, sorted."""

    names: list[str]
    stat: NodeStat


class WatchKind(Enum):
    """Why a watch was called."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4
    DROPPED = -1
    """The connection was lost and the watch with it: read again and watch again."""


class WatchEvent(NamedTuple):
    """What a watch is called with, once."""

    kind: WatchKind
    path: str


Watcher = Callable[[WatchEvent], None]
StateListener = Callable[[SessionState], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Of a multi: create a node."""

    path: str
    data: bytes = b""
    kind: NodeKind = NodeKind.PERSISTENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Set:
    """Of a multi: change a node's data."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """Of a multi: delete a node without children."""

    path: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Of a multi: fail unless the node has this version."""

    path: str
    version: int


Operation = Create | Set | Delete | Check
MultiResult = str | NodeStat | None
"""The path of a created node, the new stat of a set one, nothing for the others."""


class Session(Protocol):
    """One session with the service.

    Every call raises ConnectionLost (possibly in doubt), SessionLost, or what the service refused
    it with. While the session is suspended calls fail at once and are not in doubt: wait with
    `connected`.
    """

    @property
    def session_id(self) -> SessionId: ...

    @property
    def timeout_ms(self) -> int:
        """As the service granted it."""

    @property
    def state(self) -> SessionState:
        """Becomes LOST before any listener is called: check it right before acting."""

    def add_listener(self, listener: StateListener) -> None:
        """Call it with every state from now on."""

    async def connected(self) -> None:
        """Return when the session has a connection; raises SessionLost."""

    async def create(
        self, path: str, data: bytes = b"", *, kind: NodeKind = NodeKind.PERSISTENT
    ) -> Created:
        """Raises NodeExists, NoNode without the parent, NoChildrenForEphemerals."""

    async def exists(self, path: str, *, watch: Watcher | None = None) -> NodeStat | None:
        """The stat, or None; the watch also waits for a node that does not exist yet."""

    async def get(self, path: str, *, watch: Watcher | None = None) -> NodeData:
        """Raises NoNode, and then nothing is watched."""

    async def children(self, path: str, *, watch: Watcher | None = None) -> NodeChildren:
        """Raises NoNode, and then nothing is watched."""

    async def set(self, path: str, data: bytes, *, version: int) -> NodeStat:
        """Raises NoNode, BadVersion."""

    async def delete(self, path: str, *, version: int) -> None:
        """Raises NoNode, BadVersion, NotEmpty."""

    async def multi(self, operations: Sequence[Operation]) -> list[MultiResult]:
        """All of them or none; raises MultiFailed, RequestTooLarge."""

    async def sync(self, path: str) -> None:
        """What is read afterwards is at least as new as everything committed before."""

    async def close(self) -> None:
        """End the session; its ephemeral nodes are deleted. Never raises, returns in time."""


class Coordination(Protocol):
    """Opens sessions."""

    async def connect(self, *, timeout_ms: int, wait_s: float) -> Session:
        """Open a session that expires after `timeout_ms` without a ping; raises CannotConnect."""
