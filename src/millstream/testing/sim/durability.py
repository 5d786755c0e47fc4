"""What a power loss may leave behind: durable state, pending changes, and the fate of each.

The model is adversarial but legal. Content is durable only after a sync of the file, a name only
after a sync of its directory, and neither implies the other. Until then every pending change may
survive or not, in any combination, and a write may survive in part. Two things stay atomic, as
every journaling file system keeps them: one rename, and one file's having at most one name.
After a failed sync the changes it covered stay in doubt forever: a later successful sync says
nothing about them, because the kernel may have marked their pages clean.
"""

from collections.abc import Callable
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

ROOT_INODE: Final = 1
SECTOR_BYTES: Final = 512
"""What a disk writes atomically."""


class Write(NamedTuple):
    """`data` was written at `position`."""

    number: int
    inode: int
    path: str
    position: int
    data: bytes


class Truncate(NamedTuple):
    """The file was cut or grown to `size`."""

    number: int
    inode: int
    path: str
    size: int


class Link(NamedTuple):
    """A name was given to an inode: created, or moved here from `from_directory`."""

    number: int
    inode: int
    path: str
    directory: int
    name: str
    from_directory: int
    is_directory: bool


class Unlink(NamedTuple):
    """An inode lost its name in `directory`."""

    number: int
    inode: int
    path: str
    directory: int


class Sync(NamedTuple):
    """A file's content was synced, or that failed."""

    inode: int
    failed: bool


class SyncDirectory(NamedTuple):
    """A directory's names were synced, or that failed."""

    directory: int
    failed: bool


class Mark(NamedTuple):
    """A value from the caller, which records what had been promised before a crash."""

    value: object


DataChange = Write | Truncate
NameChange = Link | Unlink
Change = Write | Truncate | Link | Unlink
Step = Change | Sync | SyncDirectory | Mark


class FateKind(Enum):
    """What becomes of one pending change; all but KEEP and DROP are for writes only."""

    KEEP = "kept"
    DROP = "dropped"
    ZEROS = "size kept, data lost"
    PREFIX = "torn after"
    PREFIX_OF_FULL_SIZE = "size kept, data torn after"
    SECTORS = "sectors kept"


class Fate(NamedTuple):
    """A kind, and how many bytes (PREFIX) or which sectors as a bit mask (SECTORS)."""

    kind: FateKind
    amount: int = 0

    def __str__(self) -> str:
        if self.kind is FateKind.SECTORS:
            return f"{self.kind.value} {self.amount:b}"
        return f"{self.kind.value} {self.amount}" if self.amount else self.kind.value


KEEP: Final = Fate(FateKind.KEEP)
DROP: Final = Fate(FateKind.DROP)
ZEROS: Final = Fate(FateKind.ZEROS)

FateChooser = Callable[[Change], Fate]


def write_into(content: bytearray, position: int, data: bytes | memoryview) -> None:
    """A positional write with a file's rules: a gap before it reads as zeros."""
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    """Truncate with a file's rules: grown bytes read as zeros."""
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def sectors_of(write: Write) -> list[tuple[int, int]]:
    """The write's data as ranges, cut at the disk's sector boundaries."""
    size = len(write.data)
    first_cut = SECTOR_BYTES - write.position % SECTOR_BYTES
    cuts = [0, *range(first_cut, size, SECTOR_BYTES), size]
    return list(pairwise(cuts))


def apply_data(content: bytearray, change: DataChange, fate: Fate = KEEP) -> None:
    """What the change leaves of itself in the content under the given fate."""
    if fate.kind is FateKind.DROP:
        return
    if isinstance(change, Truncate):
        resize(content, change.size)
        return
    end = change.position + len(change.data)
    if fate.kind is FateKind.KEEP:
        write_into(content, change.position, change.data)
    elif fate.kind is FateKind.SECTORS:
        for number, (start, stop) in enumerate(sectors_of(change)):
            if fate.amount >> number & 1:
                write_into(content, change.position + start, change.data[start:stop])
    elif fate.amount:
        write_into(content, change.position, change.data[: fate.amount])
    if fate.kind in (FateKind.ZEROS, FateKind.PREFIX_OF_FULL_SIZE) and end > len(content):
        resize(content, end)


class Tree:
    """File contents and directory entries by inode, as a disk holds them at one moment."""

    __slots__ = ("contents", "entries", "location_of")

    def __init__(self) -> None:
        self.contents: dict[int, bytearray] = {}
        self.entries: dict[int, dict[str, int]] = {ROOT_INODE: {}}
        self.location_of: dict[int, tuple[int, str]] = {}

    def copy(self) -> "Tree":
        twin = Tree()
        twin.contents = {inode: bytearray(content) for inode, content in self.contents.items()}
        twin.entries = {inode: dict(names) for inode, names in self.entries.items()}
        twin.location_of = dict(self.location_of)
        return twin

    def apply_name(self, change: NameChange) -> None:
        """Move or remove the inode, wherever it is now.

        "Wherever" matters when an earlier rename of the same file was lost: one file never ends
        up with two names.
        """
        location = self.location_of.pop(change.inode, None)
        if location is not None:
            del self.entries[location[0]][location[1]]
        if isinstance(change, Unlink):
            return
        names = self.entries.setdefault(change.directory, {})
        displaced = names.get(change.name)
        if displaced is not None:
            del self.location_of[displaced]
        names[change.name] = change.inode
        self.location_of[change.inode] = (change.directory, change.name)
        if change.is_directory:
            self.entries.setdefault(change.inode, {})
        else:
            self.contents.setdefault(change.inode, bytearray())


class Durability:
    """The durable tree and the changes that a power loss may still undo.

    A fold over steps: the live disk folds as it goes, the explorer folds a recording again.
    """

    def __init__(self, durable: Tree | None = None) -> None:
        self.durable = durable if durable is not None else Tree()
        self.version = 0
        """Grows whenever a sync changed what is certain."""
        self._data: dict[int, list[DataChange]] = {}
        self._names: list[NameChange] = []
        self._doubtful: set[int] = set()
        self._certain: set[int] = set()
        self._waiting_for: dict[int, set[int]] = {}

    def copy(self) -> "Durability":
        """A twin that shares only what never changes."""
        twin = Durability(self.durable.copy())
        twin.version = self.version
        twin._data = {inode: list(changes) for inode, changes in self._data.items()}
        twin._names = list(self._names)
        twin._doubtful = set(self._doubtful)
        twin._certain = set(self._certain)
        twin._waiting_for = {number: set(left) for number, left in self._waiting_for.items()}
        return twin

    def fold(self, step: Step) -> None:
        if isinstance(step, Write | Truncate):
            self._data.setdefault(step.inode, []).append(step)
        elif isinstance(step, Link | Unlink):
            self._names.append(step)
            self._waiting_for[step.number] = _directories_of(step)
        elif isinstance(step, Sync):
            self._sync(step)
        elif isinstance(step, SyncDirectory):
            self._sync_directory(step)

    def pending(self) -> list[Change]:
        """Every change whose fate a power loss would decide, oldest first."""
        changes: list[Change] = [change for changes in self._data.values() for change in changes]
        changes.extend(self._names)
        if self._certain:
            changes = [change for change in changes if change.number not in self._certain]
        changes.sort(key=_number_of)
        return changes

    def after_power_loss(self, choose: FateChooser) -> Tree:
        """The tree that is left when every pending change gets its chosen fate."""
        left = self.durable.copy()
        fates = {change.number: choose(change) for change in self.pending()}
        for name_change in self._names:
            if fates.get(name_change.number, KEEP).kind is not FateKind.DROP:
                left.apply_name(name_change)
        for inode, changes in self._data.items():
            content = left.contents.setdefault(inode, bytearray())
            for change in changes:
                apply_data(content, change, fates.get(change.number, KEEP))
        return left

    def _sync(self, step: Sync) -> None:
        changes = self._data.get(step.inode)
        if not changes:
            return
        if step.failed:
            self._doubtful.update(
                change.number for change in changes if change.number not in self._certain
            )
            return
        self.version += 1
        # What is certain is folded only up to the first change in doubt: order decides what an
        # overlapping range reads as.
        content = self.durable.contents.setdefault(step.inode, bytearray())
        certain_count = len(changes)
        for index, change in enumerate(changes):
            if change.number in self._doubtful:
                certain_count = index
                break
            apply_data(content, change)
        self._certain.difference_update(change.number for change in changes[:certain_count])
        del changes[:certain_count]
        self._certain.update(
            change.number for change in changes if change.number not in self._doubtful
        )
        if not changes:
            del self._data[step.inode]

    def _sync_directory(self, step: SyncDirectory) -> None:
        covered = [
            change.number
            for change in self._names
            if step.directory in self._waiting_for[change.number]
            and change.number not in self._doubtful
        ]
        if not covered:
            return
        if step.failed:
            self._doubtful.update(covered)
            return
        self.version += 1
        for number in covered:
            self._waiting_for[number].discard(step.directory)
            if not self._waiting_for[number]:
                self._certain.add(number)
        self._fold_certain_names()

    def _fold_certain_names(self) -> None:
        """Fold what is certain, except after an uncertain change of the same name or inode."""
        blocked: set[object] = set()
        left: list[NameChange] = []
        for change in self._names:
            keys = _keys_of(change)
            if change.number in self._certain and blocked.isdisjoint(keys):
                self._certain.discard(change.number)
                del self._waiting_for[change.number]
                self.durable.apply_name(change)
            else:
                blocked.update(keys)
                left.append(change)
        self._names = left
        self._forget_unreachable()

    def _forget_unreachable(self) -> None:
        """Drop the content of files that no durable or pending name leads to any more."""
        named = set(self.durable.location_of)
        named.update(change.inode for change in self._names if isinstance(change, Link))
        for inode in [inode for inode in self.durable.contents if inode not in named]:
            del self.durable.contents[inode]
            forgotten = {change.number for change in self._data.pop(inode, ())}
            self._doubtful -= forgotten
            self._certain -= forgotten


def _number_of(change: Change) -> int:
    return change.number


def _directories_of(change: NameChange) -> set[int]:
    if isinstance(change, Link):
        return {change.directory, change.from_directory}
    return {change.directory}


def _keys_of(change: NameChange) -> tuple[object, ...]:
    if isinstance(change, Link):
        return (change.inode, (change.directory, change.name))
    return (change.inode,)
