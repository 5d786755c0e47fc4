"""The watches of all connections. A connection's watches end with it.

Data watches and child watches are two tables, as in ZooKeeper. A one-time watch is removed when it
fires; a persistent one stays; a recursive one (kept with the data watches) also fires for
everything below its path, but not for changes of child lists.
"""

from collections.abc import Callable, Iterator
from enum import IntFlag
from typing import NewType

from millstream.coordination.keeper.protocol import Event
from millstream.coordination.keeper.state import Trigger
from millstream.coordination.paths import ROOT, parent_of

ConnectionId = NewType("ConnectionId", int)
Notify = Callable[[ConnectionId, Event, str], None]


class Mode(IntFlag):
    """How long a watch lasts and how far it sees; one path may have several of one connection."""

    ONCE = 1
    PERSISTENT = 2
    RECURSIVE = 4


class Table:
    """One of the two tables. Dicts instead of sets: their order is the same in every run."""

    def __init__(self) -> None:
        self.by_path: dict[str, dict[ConnectionId, Mode]] = {}
        self.by_connection: dict[ConnectionId, dict[str, None]] = {}
        self.recursive_count = 0
        self.total = 0

    def add(self, connection: ConnectionId, path: str, mode: Mode) -> None:
        watchers = self.by_path.setdefault(path, {})
        before = watchers.get(connection, Mode(0))
        watchers[connection] = before | mode
        self.total += not before
        self.by_connection.setdefault(connection, {})[path] = None
        self.recursive_count += bool(mode & Mode.RECURSIVE and not before & Mode.RECURSIVE)

    def remove(self, connection: ConnectionId, path: str, mode: Mode) -> bool:
        """Whether there was one of that mode."""
        watchers = self.by_path.get(path, {})
        before = watchers.get(connection, Mode(0))
        if not before & mode:
            return False
        self.recursive_count -= bool(before & mode & Mode.RECURSIVE)
        left = before & ~mode
        if left:
            watchers[connection] = left
            return True
        del watchers[connection]
        self.total -= 1
        if not watchers:
            del self.by_path[path]
        paths = self.by_connection[connection]
        del paths[path]
        if not paths:
            del self.by_connection[connection]
        return True

    def has(self, connection: ConnectionId, path: str, mode: Mode) -> bool:
        return bool(self.by_path.get(path, {}).get(connection, Mode(0)) & mode)

    def forget(self, connection: ConnectionId) -> None:
        for path in list(self.by_connection.get(connection, ())):
            self.remove(connection, path, Mode.ONCE | Mode.PERSISTENT | Mode.RECURSIVE)

    def take_watchers(self, path: str) -> list[ConnectionId]:
        """The connections to notify of a change of this path; one-time watches are removed."""
        found = list(self.by_path.get(path, ()))
        for connection in found:
            self.remove(connection, path, Mode.ONCE)
        if self.recursive_count:
            for above in _paths_above(path):
                watchers = self.by_path.get(above, {})
                found += [one for one, mode in watchers.items() if mode & Mode.RECURSIVE]
        return list(dict.fromkeys(found))


class WatchTable:
    """All watches of the server."""

    def __init__(self) -> None:
        self.data = Table()
        self.children = Table()

    def add_persistent(self, connection: ConnectionId, path: str, mode: Mode) -> None:
        self.data.add(connection, path, mode)
        if mode != Mode.RECURSIVE:
            self.children.add(connection, path, mode)

    def forget(self, connection: ConnectionId) -> None:
        """The connection is gone."""
        self.data.forget(connection)
        self.children.forget(connection)

    @property
    def total(self) -> int:
        return self.data.total + self.children.total

    def count_of(self, connection: ConnectionId) -> int:
        tables = (self.data, self.children)
        return sum(len(table.by_connection.get(connection, ())) for table in tables)

    def fire(self, trigger: Trigger, notify: Notify) -> None:
        """Notify every connection that watches this."""
        kind, path = trigger
        if kind == Event.CHILDREN:
            for connection in self.children.take_watchers(path):
                notify(connection, kind, path)
            return
        watchers = self.data.take_watchers(path)
        if kind == Event.DELETED:
            # One event for a node's end, however it was watched.
            watchers = list(dict.fromkeys(watchers + self.children.take_watchers(path)))
        for connection in watchers:
            notify(connection, kind, path)


def _paths_above(path: str) -> Iterator[str]:
    while path != ROOT:
        path = parent_of(path)
        yield path
