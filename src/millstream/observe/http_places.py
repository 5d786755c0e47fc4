"""Which HTTP connections are kept when there are many, and whose metrics are written next. Pure.

Neither an address nor a request shows that a client is hostile, so none is refused: the places are
few, and the connections that use theirs least give them up to new ones. A new connection has a
moment to send a request, and one that is being answered and reads keeps its place.
"""

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

CONNECTIONS_MAX: Final = 32
"""A few scrapers and probes. More are open for a moment only."""

PER_ADDRESS_MAX: Final = 16
"""Of one address: two of them cannot take turns in taking everything."""

OPEN_MAX: Final = 128
"""At any moment, however young they are: a descriptor and some kilobytes each."""

YOUNG_S: Final = 1.0
"""How long a connection is left alone that is new, whose request has begun to arrive, or that waits
for metrics."""

SCRAPES_MAX: Final = 4
"""Responses with metrics written at a time. Each does a step in every event-loop iteration, and may
have thousands of values in memory."""

READER_WAIT_S: Final = 1.0
"""How long in all such a response waits for its reader while other scrapes wait for it."""


class Use(IntEnum):
    """What a connection does; the first are closed first."""

    IDLE = 0
    HEAD = 1
    """A part of a request has arrived."""
    WAITING = 2
    """For its turn to get metrics."""
    UNREAD = 3
    """Its reader does not take the answer."""
    YOUNG = 4
    ANSWERED = 5
    """And it reads: never closed for others."""


class Occupant(Protocol):
    """A connection, as far as this module is concerned."""

    @property
    def address(self) -> str: ...

    @property
    def since_s(self) -> float:
        """When its present use began."""

    def use(self, now_s: float) -> Use: ...

    def reader_wait_s(self, now_s: float) -> float:
        """How long its answer has waited for the reader, in all."""


def surplus(
    occupants: Iterable[Occupant], now_s: float, *, connections_max: int, spares_young: bool = True
) -> list[Occupant]:
    """Those to close: of the addresses with the most connections those of least use, oldest first.

    There may be too few of them, because the others are young, or read their answers.
    """
    per_address: Counter[str] = Counter()
    closable: dict[str, list[tuple[int, float, int, Occupant]]] = {}
    last = Use.UNREAD if spares_young else Use.YOUNG
    for number, one in enumerate(occupants):
        per_address[one.address] += 1
        use = one.use(now_s)
        if use <= last:
            closable.setdefault(one.address, []).append((use, one.since_s, number, one))
    for ones in closable.values():
        heapify(ones)
    total, chosen = per_address.total(), []
    largest = [(-count, address) for address, count in per_address.items()]
    heapify(largest)
    while largest:
        count, address = heappop(largest)
        if -count <= PER_ADDRESS_MAX and total <= connections_max:
            break
        if not closable.get(address):
            continue
        chosen.append(heappop(closable[address])[3])
        total -= 1
        heappush(largest, (count + 1, address))
    return chosen


class Scrapes:
    """The connections to which metrics are being written, and those that wait for that."""

    def __init__(self) -> None:
        self._served: dict[Occupant, None] = {}
        self._waiting: dict[Occupant, None] = {}

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def begin(self, one: Occupant) -> bool:
        """Whether it may begin now; otherwise `take_next` names it later."""
        if len(self._served) >= SCRAPES_MAX:
            self._waiting[one] = None
            return False
        self._served[one] = None
        return True

    def end(self, one: Occupant) -> None:
        """Its answer is complete, or its connection gone."""
        self._served.pop(one, None)
        self._waiting.pop(one, None)

    def take_next(self) -> Occupant | None:
        """The next to begin: of the address that is being served least, the one that came first."""
        if len(self._served) >= SCRAPES_MAX or not self._waiting:
            return None
        served = Counter(one.address for one in self._served)
        chosen = min(self._waiting, key=lambda one: served[one.address])
        del self._waiting[chosen]
        self._served[chosen] = None
        return chosen

    def stuck(self, now_s: float) -> list[Occupant]:
        """Those to close because others wait and they do not read."""
        if not self._waiting:
            return []
        return [one for one in self._served if one.reader_wait_s(now_s) > READER_WAIT_S]
