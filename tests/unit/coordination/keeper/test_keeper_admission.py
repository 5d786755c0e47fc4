"""Which connection to the keeper has to go when there are too many without the secret."""

import pytest

from millstream.coordination.keeper.admission import AddressUse, Admission
from millstream.coordination.keeper.limits import (
    UNAUTHENTICATED_MAX,
    UNAUTHENTICATED_PER_ADDRESS_MAX,
)
from millstream.coordination.keeper.watches import ConnectionId

HERE = "10.0.0.1"


class Door:
    """Opens connections; those that have to go are closed."""

    def __init__(self) -> None:
        self.admission = Admission()
        self.open: dict[ConnectionId, AddressUse] = {}
        self._last = 0

    def connect(self, address: str = HERE, *, greets: bool = False) -> ConnectionId:
        self._last += 1
        made = ConnectionId(self._last)
        use = self.open[made] = self.admission.opened(made, address)
        surplus = self.admission.surplus(use)
        if surplus is not None:
            self.admission.closed(surplus, self.open.pop(surplus))
        if greets and made in self.open:
            self.greet(made)
        return made

    def greet(self, one: ConnectionId) -> None:
        self.admission.greeted(one, self.open[one])


@pytest.mark.parametrize("flood_greets", [False, True])
def test_a_flood_of_one_kind_does_not_close_connections_of_the_other(*, flood_greets: bool) -> None:
    """A broker is silent for a moment, and then asks for a session: either may be the oldest."""
    door = Door()
    broker = door.connect(greets=not flood_greets)
    for _ in range(2 * UNAUTHENTICATED_PER_ADDRESS_MAX):
        door.connect(greets=flood_greets)
    assert len(door.open) == UNAUTHENTICATED_PER_ADDRESS_MAX
    assert broker in door.open


def test_a_flood_of_one_kind_closes_its_own_oldest_first() -> None:
    door = Door()
    flood = [door.connect() for _ in range(UNAUTHENTICATED_PER_ADDRESS_MAX + 3)]
    assert list(door.open) == flood[3:]


def test_a_flood_from_several_addresses_closes_its_own() -> None:
    door = Door()
    broker = door.connect("10.0.0.9", greets=True)
    for number in range(2 * UNAUTHENTICATED_MAX):
        door.connect(f"10.0.1.{number % 4}")
    assert len(door.open) == UNAUTHENTICATED_MAX
    assert broker in door.open


def test_nothing_is_left_of_connections_that_are_gone() -> None:
    door = Door()
    kinds = [door.connect(greets=greets) for greets in (False, True, True)]
    assert door.admission.is_admitted(kinds[2], door.open[kinds[2]])
    assert door.admission.newcomers() == kinds[:2]
    for one in kinds:
        door.admission.closed(one, door.open[one])
    assert door.admission.newcomers() == []
    assert door.admission._uses == {}
    assert door.admission._newcomers == door.admission._members == 0
