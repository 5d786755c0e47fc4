"""When the sessions of a group's members end.

Every heartbeat moves one deadline to a later time, so that must be cheap: the heap keeps the
earliest time at which a key has to be checked, and the real deadline is looked up only then.
"""

from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from millstream.model.ids import MemberId
from millstream.model.invariant import invariant

STALE_MIN: Final = 64
"""So many stale entries are always left in the heap."""


class Deadlines:
    """One deadline for each member id; the earliest is found without scanning all."""

    __slots__ = ("_due_ms", "_heap", "_queued_ms")

    def __init__(self) -> None:
        self._due_ms: dict[MemberId, int] = {}
        self._heap: list[tuple[int, MemberId]] = []
        self._queued_ms: dict[MemberId, int] = {}
        """Time of the valid heap entry of the key; older ones are skipped."""

    def put(self, member_id: MemberId, at_ms: int) -> None:
        """Set or move it. Moving it later does not touch the heap."""
        self._due_ms[member_id] = at_ms
        queued_ms = self._queued_ms.get(member_id)
        if queued_ms is None or at_ms < queued_ms:
            self._queued_ms[member_id] = at_ms
            heappush(self._heap, (at_ms, member_id))

    def drop(self, member_id: MemberId) -> None:
        """Remove the deadline; its heap entry is removed when its time comes, or with others."""
        self._due_ms.pop(member_id, None)
        # A session may last half an hour, and consumers may join and leave every second.
        if len(self._heap) > 2 * len(self._due_ms) + STALE_MIN:
            self._queued_ms = dict(self._due_ms)
            self._heap = [(at_ms, one) for one, at_ms in self._due_ms.items()]
            heapify(self._heap)

    def of(self, member_id: MemberId) -> int | None:
        """The member's deadline, if it has one."""
        return self._due_ms.get(member_id)

    def next_ms(self) -> int | None:
        """The earliest deadline."""
        while self._heap:
            at_ms, member_id = self._heap[0]
            due_ms = self._due_ms.get(member_id)
            if self._queued_ms.get(member_id) != at_ms:
                heappop(self._heap)
            elif due_ms is None:
                heappop(self._heap)
                del self._queued_ms[member_id]
            elif due_ms > at_ms:
                self._queued_ms[member_id] = due_ms
                heapreplace(self._heap, (due_ms, member_id))
            else:
                return at_ms
        return None

    def take_due(self, now_ms: int) -> MemberId | None:
        """Remove and return a member whose deadline has passed."""
        at_ms = self.next_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        member_id = heappop(self._heap)[1]
        invariant(
            self._due_ms[member_id] <= now_ms,
            "I-30 a session ends before its time",
            member_id=member_id,
        )
        del self._queued_ms[member_id], self._due_ms[member_id]
        return member_id
