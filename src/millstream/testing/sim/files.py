"""The live tree of a simulated file system: nodes in memory and how a path finds them."""

import errno

from millstream.testing.sim.disk_faults import os_error
from millstream.testing.sim.durability import ROOT_INODE, Tree


class FileNode:
    """A file's content as readers see it now, synced or not."""

    __slots__ = ("changes", "content", "inode", "linked", "modified_ms", "open_count")

    def __init__(self, inode: int, content: bytearray | None = None) -> None:
        self.inode = inode
        self.content = bytearray() if content is None else content
        self.linked = True
        self.modified_ms: int | None = None
        self.changes = 1
        self.open_count = 0


class DirectoryNode:
    """Names as they are seen now, synced or not."""

    __slots__ = ("entries", "inode")

    def __init__(self, inode: int) -> None:
        self.inode = inode
        self.entries: dict[str, Node] = {}


Node = FileNode | DirectoryNode


def parts_of(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


class LiveTree:
    """Path lookup with the operating system's errors."""

    def __init__(self) -> None:
        self.root = DirectoryNode(ROOT_INODE)

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for part in parts_of(path):
            if not isinstance(node, DirectoryNode) or part not in node.entries:
                return None
            node = node.entries[part]
        return node

    def get(self, path: str) -> Node:
        node: Node = self.root
        for part in parts_of(path):
            if not isinstance(node, DirectoryNode):
                raise os_error(errno.ENOTDIR, path)
            if part not in node.entries:
                raise os_error(errno.ENOENT, path)
            node = node.entries[part]
        return node

    def directory(self, path: str) -> DirectoryNode:
        node = self.get(path)
        if not isinstance(node, DirectoryNode):
            raise os_error(errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> FileNode:
        node = self.get(path)
        if not isinstance(node, FileNode):
            raise os_error(errno.EISDIR, path)
        return node

    def parent_and_name(self, path: str) -> tuple[DirectoryNode, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        if not name:
            raise os_error(errno.EBUSY, path)
        return self.directory(parent), name


def live_from(tree: Tree) -> tuple[LiveTree, Tree, int]:
    """The live tree of what a disk holds, what of it can be reached, and the next free inode."""
    live, reachable = LiveTree(), Tree()
    waiting = [live.root]
    highest = ROOT_INODE
    while waiting:
        directory = waiting.pop()
        names = reachable.entries.setdefault(directory.inode, {})
        for name, inode in sorted(tree.entries.get(directory.inode, {}).items()):
            highest = max(highest, inode)
            names[name] = inode
            reachable.location_of[inode] = (directory.inode, name)
            if inode in tree.entries:
                child = DirectoryNode(inode)
                directory.entries[name] = child
                waiting.append(child)
            else:
                content = tree.contents.get(inode, bytearray())
                reachable.contents[inode] = content
                directory.entries[name] = FileNode(inode, bytearray(content))
    return live, reachable, highest + 1
