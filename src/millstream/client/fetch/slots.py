"""Assigns connections to reads."""


class FetchSlots:
    """Numbers for the connections of reads; a returned one is reused first.

    So a process that reads one range after another keeps one connection to each broker.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._uses: list[int] = []

    def take(self) -> int:
        if self._free:
            slot = self._free.pop()
        else:
            slot = len(self._uses)
            self._uses.append(0)
        self._uses[slot] += 1
        return slot

    def uses(self, slot: int) -> int:
        """How often it was taken; an unchanged count means no other read has used it since."""
        return self._uses[slot]

    def give_back(self, slot: int) -> None:
        self._free.append(slot)
