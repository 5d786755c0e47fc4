"""The part of a simulated disk that outlives a process: files, durability, faults, trace."""

import errno

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.disk_faults import DiskFault, DiskFaults, DiskOperation, os_error
from millstream.testing.sim.durability import (
    Durability,
    Link,
    Step,
    Sync,
    SyncDirectory,
    Tree,
    Truncate,
    Unlink,
    Write,
    resize,
    write_into,
)
from millstream.testing.sim.files import DirectoryNode, FileNode, LiveTree, Node, live_from
from millstream.testing.sim.trace import Trace


class Recording:
    """A disk's state when the recording began and every step since: the explorer's input."""

    def __init__(self, start: Durability) -> None:
        self.start = start
        self.steps: list[Step] = []


class SimStorage:
    """The platters: each change goes to the live tree, the durability model and the trace."""

    def __init__(self, tree: Tree, randomness: SeededRandomness, trace: Trace) -> None:
        self.live: LiveTree
        self.live, durable, self._next_inode = live_from(tree)
        self.durability = Durability(durable)
        self.randomness = randomness
        self.faults = DiskFaults(randomness.fork("faults"))
        self.trace = trace
        self.recording: Recording | None = None
        self.capacity_bytes: int | None = None
        self.used_bytes = sum(map(len, durable.contents.values()))
        self.lock_holders: dict[int, tuple[object, object]] = {}
        self.powered = True
        self._change_number = 0

    def take(self, step: Step) -> None:
        self.durability.fold(step)
        if self.recording is not None:
            self.recording.steps.append(step)

    def strike(self, operation: DiskOperation, path: str, other: str = "") -> DiskFault | None:
        return self.faults.strike(operation, path, other) if self.faults.active else None

    # -- Content

    def write(self, node: FileNode, path: str, position: int, data: bytes) -> None:
        """Write all, or what fits or the planned fault lets through and then raise."""
        if position < 0:
            raise os_error(errno.EINVAL, path)
        failure = 0
        fault = self.strike("write", path)
        if fault is not None:
            failure, data = fault.errno, data[: fault.partial_bytes]
        data, is_full = self._what_fits(node, position, data)
        if is_full:
            failure = failure or errno.ENOSPC
        self.trace.note("write", path, position, len(data))
        if data:
            self.used_bytes += max(0, position + len(data) - len(node.content))
            write_into(node.content, position, data)
            node.modified_ms = None
            node.changes += 1
            self.take(Write(self._number(), node.inode, path, position, data))
        if failure:
            raise os_error(failure, path)

    def _what_fits(self, node: FileNode, position: int, data: bytes) -> tuple[bytes, bool]:
        if self.capacity_bytes is None or not data:
            return data, False
        growth = max(0, position + len(data) - len(node.content))
        excess = growth - max(0, self.capacity_bytes - self.used_bytes)
        if excess <= 0:
            return data, False
        return data[: max(0, len(data) - excess)], True

    def truncate(self, node: FileNode, path: str, size: int) -> None:
        if size < 0:
            raise os_error(errno.EINVAL, path)
        self.used_bytes += size - len(node.content)
        resize(node.content, size)
        node.modified_ms = None
        node.changes += 1
        self.trace.note("truncate", path, size)
        self.take(Truncate(self._number(), node.inode, path, size))

    def sync(self, node: FileNode, path: str) -> None:
        fault = self.strike("sync", path)
        self.trace.note("sync", path, len(node.content), fault is None)
        self.take(Sync(node.inode, failed=fault is not None))
        if fault is None:
            return
        if fault.drops_cache:
            durable = self.durability.durable.contents.get(node.inode, b"")
            self.used_bytes += len(durable) - len(node.content)
            node.content[:] = durable
        raise os_error(fault.errno, path)

    def give_back(self, node: FileNode) -> None:
        """Free a removed file's space once no process has it open."""
        if not node.linked and node.open_count <= 0:
            self.used_bytes -= len(node.content)
            node.content = bytearray()

    # -- Names

    def create(self, node_type: type[Node], parent: DirectoryNode, name: str, path: str) -> None:
        node = node_type(self._next_inode)
        self._next_inode += 1
        parent.entries[name] = node
        self._link(node, parent, name, path, from_directory=parent)

    def move(self, node: Node, path: str, *, source: tuple[DirectoryNode, str], name: str) -> None:
        """Give the node its new name at `path`, replacing what has it."""
        parent = self.live.parent_and_name(path)[0]
        replaced = parent.entries.get(name)
        del source[0].entries[source[1]]
        parent.entries[name] = node
        if isinstance(replaced, FileNode):
            replaced.linked = False
            self.give_back(replaced)
        self._link(node, parent, name, path, from_directory=source[0])

    def unlink(self, node: Node, parent: DirectoryNode, name: str, path: str) -> None:
        del parent.entries[name]
        if isinstance(node, FileNode):
            node.linked = False
            self.give_back(node)
        self.trace.note("remove", path)
        self.take(Unlink(self._number(), node.inode, path, parent.inode))

    def sync_directory(self, directory: DirectoryNode, path: str) -> None:
        fault = self.strike("sync_directory", path)
        self.trace.note("sync_directory", path, fault is None)
        self.take(SyncDirectory(directory.inode, failed=fault is not None))
        if fault is not None:
            raise os_error(fault.errno, path)

    def _link(
        self,
        node: Node,
        parent: DirectoryNode,
        name: str,
        path: str,
        *,
        from_directory: DirectoryNode,
    ) -> None:
        self.trace.note("link", path, node.inode)
        self.take(
            Link(
                self._number(),
                node.inode,
                path,
                parent.inode,
                name,
                from_directory.inode,
                isinstance(node, DirectoryNode),
            )
        )

    def _number(self) -> int:
        self._change_number += 1
        return self._change_number
