"""A file system in memory that tracks what is durable, fails on demand and loses power.

`SimDisk` is one process's view; `another_process` gives a second view of the same files. After
`kill` (the process dies, nothing is lost) or `crash` (power loss) the view and its handles are
dead, and `after_kill` or `after_crash` give the next process's view. `durability` has the rules of
what may be lost.
"""

import errno
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self

from millstream.model.invariant import invariant
from millstream.runtime.disk import File, ReadableBuffer
from millstream.runtime.os_disk import LOCK_NAME
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.disk_faults import DiskFaults, DiskOperation, os_error
from millstream.testing.sim.durability import Durability, FateChooser, Mark, Tree
from millstream.testing.sim.files import DirectoryNode, FileNode, Node, parts_of
from millstream.testing.sim.storage import Recording, SimStorage
from millstream.testing.sim.trace import Trace

FREE_BYTES_UNLIMITED: Final = 1 << 40
"""What a disk without a capacity reports as free."""


class ProcessDiedError(RuntimeError):
    """A dead process's disk or file was used.

    Not an OSError: code that turns disk errors into answers must not swallow it.
    """


class SimFile:
    """An open file of a simulated disk."""

    __slots__ = ("_disk", "_is_writable", "_node", "path")

    def __init__(self, disk: "SimDisk", path: str, node: FileNode, *, is_writable: bool) -> None:
        self._disk = disk
        self.path = path
        self._node: FileNode | None = node
        self._is_writable = is_writable
        node.open_count += 1

    @property
    def descriptor(self) -> int | None:
        return None

    def size(self) -> int:
        return len(self._readable("stat").content)

    def state(self) -> tuple[int, int, bool]:
        node = self._readable("stat")
        return len(node.content), node.changes, True

    def now(self) -> int:
        return self._node.changes if self._node is not None else 0

    def is_removed(self) -> bool:
        return not self._readable("stat").linked

    def write_at(self, position: int, data: ReadableBuffer) -> None:
        node = self._writable(errno.EBADF)
        self._disk.storage.write(node, self.path, position, bytes(data))

    def write_all_at(self, position: int, buffers: Sequence[ReadableBuffer]) -> None:
        node = self._writable(errno.EBADF)
        self._disk.storage.write(node, self.path, position, b"".join(buffers))

    def read_at(self, position: int, size_max: int) -> bytes:
        content = self._readable("read").content
        if position < 0 or size_max < 0:
            raise os_error(errno.EINVAL, self.path)
        return bytes(memoryview(content)[position : position + size_max])

    def read_into(self, position: int, buffer: memoryview) -> int:
        content = self._readable("read").content
        if position < 0:
            raise os_error(errno.EINVAL, self.path)
        size = max(0, min(len(content) - position, buffer.nbytes))
        if size:
            buffer.cast("B")[:size] = memoryview(content)[position : position + size]
        return size

    def truncate(self, size: int) -> None:
        node = self._writable(errno.EINVAL)
        self._disk.check("truncate", self.path)
        self._disk.storage.truncate(node, self.path, size)

    def sync(self) -> None:
        self._disk.storage.sync(self._alive(), self.path)

    def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            node.open_count -= 1
            self._disk.storage.give_back(node)
            self._disk.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _alive(self) -> FileNode:
        self._disk.require_alive()
        if self._node is None:
            raise os_error(errno.EBADF, self.path)
        return self._node

    def _readable(self, operation: DiskOperation) -> FileNode:
        node = self._alive()
        self._disk.check(operation, self.path)
        return node

    def _writable(self, refusal: int) -> FileNode:
        node = self._alive()
        if not self._is_writable:
            raise os_error(refusal, self.path)
        return node


class SimDirectoryLock:
    """The directory's lock, held by one view until released or until that process dies."""

    __slots__ = ("_directory_inode", "_disk", "_holders", "_path")

    def __init__(self, disk: "SimDisk", path: str, directory_inode: int) -> None:
        holders = disk.storage.lock_holders
        invariant(directory_inode not in holders, "a held lock was given again")
        self._disk = disk
        self._path = path
        self._holders = holders
        self._holders[directory_inode] = (self, disk)
        self._directory_inode = directory_inode

    def is_in_place(self) -> bool:
        self._disk.check("stat", self._path)
        found = self._disk.storage.live.find(self._path)
        is_same = found is not None and found.inode == self._directory_inode
        return is_same and self._disk.exists(f"{self._path}/{LOCK_NAME}")

    def release(self) -> None:
        holding = self._holders.get(self._directory_inode)
        if holding is not None and holding[0] is self:
            del self._holders[self._directory_inode]


class SimDisk:
    """One process's view of a simulated disk.

    `directories` exist, durably, from the start. With `storage` it is one more view of that.
    """

    def __init__(
        self,
        seed: int | str | SeededRandomness = 0,
        *,
        directories: Iterable[str] = (),
        trace: Trace | None = None,
        capacity_bytes: int | None = None,
        storage: SimStorage | None = None,
    ) -> None:
        if storage is None:
            randomness = seed if isinstance(seed, SeededRandomness) else SeededRandomness(seed)
            storage = SimStorage(Tree(), randomness, trace if trace is not None else Trace())
            storage.capacity_bytes = capacity_bytes
        self.storage = storage
        self._is_dead = False
        self._handles: set[SimFile] = set()
        for path in directories:
            self.make_directories(path)
            walked = ""
            for part in parts_of(path):
                self.sync_directory(walked or "/")
                walked = f"{walked}/{part}"

    # -- Opening and inspecting

    def open_read(self, path: str) -> SimFile:
        self.check("open", path)
        return self._opened(path, is_writable=False)

    def open_write(self, path: str) -> SimFile:
        self.check("open", path)
        parent, name = self.storage.live.parent_and_name(path)
        if name not in parent.entries:
            self.storage.create(FileNode, parent, name, path)
        return self._opened(path, is_writable=True)

    def _opened(self, path: str, *, is_writable: bool) -> SimFile:
        file = SimFile(self, path, self.storage.live.file(path), is_writable=is_writable)
        self._handles.add(file)
        return file

    def exists(self, path: str) -> bool:
        self.check("stat", path)
        return self.storage.live.find(path) is not None

    def is_directory(self, path: str) -> bool:
        self.check("stat", path)
        return isinstance(self.storage.live.find(path), DirectoryNode)

    def is_link(self, path: str) -> bool:
        self.check("stat", path)
        return False

    def size(self, path: str) -> int:
        self.check("stat", path)
        return len(self.storage.live.file(path).content)

    def modified_ms(self, path: str) -> int | None:
        """What was set and not overwritten since: the disk has no clock of its own."""
        self.check("stat", path)
        return self.storage.live.file(path).modified_ms

    def set_modified_ms(self, path: str, time_ms: int) -> None:
        self.check("stat", path)
        self.storage.live.file(path).modified_ms = time_ms

    def list_directory(self, path: str) -> list[str]:
        self.check("list", path)
        return sorted(self.storage.live.directory(path).entries)

    def free_bytes(self, path: str) -> int:
        self.check("stat", path)
        self.storage.live.get(path)
        if self.storage.capacity_bytes is None:
            return FREE_BYTES_UNLIMITED
        return max(0, self.storage.capacity_bytes - self.storage.used_bytes)

    def total_bytes(self, path: str) -> int:
        self.check("stat", path)
        self.storage.live.get(path)
        capacity = self.storage.capacity_bytes
        return FREE_BYTES_UNLIMITED if capacity is None else capacity

    # -- Changing names

    def make_directories(self, path: str) -> None:
        self.check("make_directory", path)
        node: Node = self.storage.live.root
        walked = ""
        for part in parts_of(path):
            walked = f"{walked}/{part}"
            if not isinstance(node, DirectoryNode):
                raise os_error(errno.ENOTDIR, walked)
            if part not in node.entries:
                self.storage.create(DirectoryNode, node, part, walked)
            node = node.entries[part]
        if not isinstance(node, DirectoryNode):
            raise os_error(errno.EEXIST, path)

    def remove(self, path: str) -> None:
        self.check("remove", path)
        parent, name = self.storage.live.parent_and_name(path)
        self.storage.unlink(self.storage.live.file(path), parent, name, path)

    def remove_directory(self, path: str) -> None:
        self.check("remove", path)
        parent, name = self.storage.live.parent_and_name(path)
        node = self.storage.live.directory(path)
        if node.entries:
            raise os_error(errno.ENOTEMPTY, path)
        self.storage.unlink(node, parent, name, path)

    def rename(self, source: str, target: str) -> None:
        self.check("rename", source, target)
        live = self.storage.live
        source_location = live.parent_and_name(source)
        parent, name = live.parent_and_name(target)
        node = live.get(source)
        if parent.entries.get(name) is not node:
            _check_replaceable(node, parent.entries.get(name), source, target)
            self.storage.move(node, target, source=source_location, name=name)

    def sync_directory(self, path: str) -> None:
        self.require_alive()
        self.storage.sync_directory(self.storage.live.directory(path), path)

    def sync_many(self, files: Sequence[File], directories: Sequence[str]) -> None:
        for file in files:
            file.sync()
        for path in directories:
            self.sync_directory(path)

    def lock_directory(self, path: str) -> SimDirectoryLock:
        self.check("lock", path)
        self.open_write(f"{path}/{LOCK_NAME}").close()
        directory = self.storage.live.directory(path)
        if directory.inode in self.storage.lock_holders:
            raise os_error(errno.EWOULDBLOCK, path)
        return SimDirectoryLock(self, path, directory.inode)

    # -- Faults, marks and recordings

    @property
    def faults(self) -> DiskFaults:
        return self.storage.faults

    @property
    def trace(self) -> Trace:
        return self.storage.trace

    @property
    def durability(self) -> Durability:
        """What a crash now could and could not take away."""
        return self.storage.durability

    def record(self) -> Recording:
        """Begin a recording from the present state; it replaces a running one."""
        self.storage.recording = Recording(self.storage.durability.copy())
        return self.storage.recording

    def mark(self, value: object) -> None:
        """Mark in the recording what the caller has been promised by now."""
        self.storage.take(Mark(value))

    # -- Ends of processes

    def another_process(self) -> "SimDisk":
        """A second view of the same files, as another process on the machine has."""
        return SimDisk(storage=self.storage)

    def kill(self) -> None:
        """The process dies: its handles and locks are gone, the files stay as they are."""
        self._is_dead = True
        self.trace.note("kill")
        for file in list(self._handles):
            file.close()
        holders = self.storage.lock_holders
        for inode in [inode for inode, (_, view) in holders.items() if view is self]:
            del holders[inode]

    def after_kill(self) -> "SimDisk":
        """The view of the process that comes next."""
        invariant(self._is_dead, "after_kill before kill")
        return SimDisk(storage=self.storage)

    def crash(self) -> None:
        """Power loss: every view and handle of this disk is dead."""
        self.storage.powered = False
        self.trace.note("crash")

    def after_crash(self, choose: FateChooser) -> "SimDisk":
        """A disk with what the power loss left; may be called many times for one crash."""
        invariant(not self.storage.powered, "after_crash before crash")
        left = SimStorage(
            self.durability.after_power_loss(choose),
            self.storage.randomness.fork("after crash"),
            self.trace,
        )
        left.capacity_bytes = self.storage.capacity_bytes
        return SimDisk(storage=left)

    # -- For this disk's files

    def check(self, operation: DiskOperation, path: str, other: str = "") -> None:
        """Raise the error planned for this call, if any."""
        self.require_alive()
        fault = self.storage.strike(operation, path, other)
        if fault is not None:
            raise os_error(fault.errno, path)

    def require_alive(self) -> None:
        if self._is_dead or not self.storage.powered:
            raise ProcessDiedError("the process that opened this disk is dead")

    def forget(self, file: SimFile) -> None:
        self._handles.discard(file)


def _check_replaceable(node: Node, replaced: Node | None, source: str, target: str) -> None:
    """The operating system's rules for what a rename may land on."""
    if isinstance(node, DirectoryNode) and f"{target}/".startswith(f"{source}/"):
        raise os_error(errno.EINVAL, target)
    if f"{source}/".startswith(f"{target}/"):
        raise os_error(errno.ENOTEMPTY, target)
    if isinstance(replaced, DirectoryNode):
        if isinstance(node, FileNode):
            raise os_error(errno.EISDIR, target)
        if replaced.entries:
            raise os_error(errno.ENOTEMPTY, target)
    elif isinstance(replaced, FileNode) and isinstance(node, DirectoryNode):
        raise os_error(errno.ENOTDIR, target)
