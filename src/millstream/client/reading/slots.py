"""Which connection a read takes."""


class FetchSlots:
    """Numbers for the connections of reads; one that is given back is used again first.

    So a process that reads one range after another keeps one connection to each broker.
    """

    def __init__(self) -> None:
        self._free: list[int] = []
        self._made = 0

    def take(self) -> int:
        if self._free:
            return self._free.pop()
        self._made += 1
        return self._made - 1

    def give_back(self, slot: int) -> None:
        self._free.append(slot)
