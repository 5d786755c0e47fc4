"""The groups of a shard, and which of them has the next deadline.

Every group keeps its own timers; the shard keeps the earliest deadline of each in one heap. A
heartbeat only moves a deadline later, and there are thousands of them a second: the heap keeps the
earlier one, and the group's deadline is read again when that is due. So a call costs only a
comparison, and the next deadline is found in O(log n) of the groups.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Protocol, TypeVar

from millstream.groups.memory import GroupMemory
from millstream.model.ids import GroupId
from millstream.model.invariant import invariant

STALE_MIN: Final = 64
"""So many stale entries are always left in the heap."""


class Timed(Protocol):
    """An object with deadlines, which takes memory."""

    @property
    def size_bytes(self) -> int: ...

    def next_deadline_ms(self) -> int | None: ...


T = TypeVar("T", bound=Timed)


def _is_due(group: Timed, now_ms: int) -> bool:
    deadline_ms = group.next_deadline_ms()
    return deadline_ms is not None and deadline_ms <= now_ms


class GroupTable(dict[GroupId, T]):
    """Groups by their id, with a heap of deadlines. After a call of a group it must be armed."""

    __slots__ = ("_armed", "_heap", "_sizes", "memory")

    def __init__(self, memory: GroupMemory | None = None) -> None:
        super().__init__()
        self.memory = GroupMemory() if memory is None else memory
        self._sizes: dict[GroupId, int] = {}
        """Of each group with members, as counted in the memory of all groups."""
        self._heap: list[tuple[int, GroupId]] = []
        self._armed: dict[GroupId, int] = {}
        """The valid heap entry of each group that has one; others are skipped."""

    def arm(self, group_id: GroupId) -> None:
        """Read the group's deadline again; the group may be gone."""
        group = self.get(group_id)
        size = 0 if group is None else group.size_bytes
        if size != self._sizes.get(group_id, 0):
            self._resize(group_id, size)
        deadline = None if group is None else group.next_deadline_ms()
        armed = self._armed.get(group_id)
        if deadline is None:
            self._armed.pop(group_id, None)
        elif armed is None or deadline < armed:
            self._armed[group_id] = deadline
            heappush(self._heap, (deadline, group_id))
            if len(self._heap) > 2 * len(self._armed) + STALE_MIN:
                self._heap = [(due, one) for one, due in self._armed.items()]
                heapify(self._heap)

    def clear(self) -> None:
        """The shard is unloaded."""
        for group_id in list(self._sizes):
            self._resize(group_id, 0)
        super().clear()

    def _resize(self, group_id: GroupId, size_bytes: int) -> None:
        self.memory.size_bytes += size_bytes - self._sizes.pop(group_id, 0)
        if size_bytes:
            self._sizes[group_id] = size_bytes

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline; the group may turn out to have nothing to do then."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[T]:
        """Each group whose deadline has passed, once. The caller calls it; it is armed here."""
        come = []
        while (deadline := self.next_deadline_ms()) is not None and deadline <= now_ms:
            _, group_id = heappop(self._heap)
            del self._armed[group_id]
            come.append(group_id)
        come.reverse()
        try:
            while come:
                group = self.get(come[-1])
                if group is not None and _is_due(group, now_ms):
                    yield group
                self.arm(come.pop())
        finally:
            for group_id in come:  # the caller has failed at one of them
                self.arm(group_id)

    def _drop_stale(self) -> None:
        heap, armed = self._heap, self._armed
        while heap and armed.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        if len(heap) < len(armed):  # not an argument of `invariant`: it runs with every request
            invariant(False, "I-30 a group's deadline is lost", heap=len(heap), n=len(armed))
