"""Connections beyond the limits: brokers and an administrator get in, all others are closed."""

from typing import Any, cast

import pytest

from millstream.broker.net.admission import (
    ADMINISTRATOR_HOLD_S,
    ADMINISTRATORS_MAX,
    PROOF_WAIT_S,
    RESERVED_MAX,
    Admission,
    is_local,
)
from millstream.observe.client_log import ClientLog
from millstream.testing.sim.clock import ManualClock
from millstream.wire.api_keys import ApiKey

FAR = "10.0.0.9"
HERE = "127.0.0.1"
OURS = "10.0.0.1"


class Core:
    allows_fast_path = True


class Peer:
    """As much of a connection as is decided on."""

    def __init__(self, world: "World", client_host: str, local_host: str) -> None:
        self.client_host = client_host
        self.local_host = local_host
        self.is_admitted = True
        self.is_closed = False
        self.core = Core()
        self._world = world

    def abort(self, reason: str, cause: object) -> None:
        del reason, cause
        self.is_closed = True
        self._world.admission.closed(cast("Any", self))


class World:
    connections_max = 2
    per_address = 1000

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.refused: list[str] = []
        client_log = ClientLog(self.clock)
        self.admission = Admission(self, self.clock, client_log, self.refused.append)

    def per_address_max(self, address: str) -> int:
        del address
        return self.per_address

    def connect(self, host: str = FAR, *, to: str = OURS) -> Peer:
        peer = Peer(self, host, to)
        self.admission.opened(cast("Any", peer))
        return peer

    def sends(self, peer: Peer, key: ApiKey = ApiKey.METADATA) -> bool:
        """Whether a request is served, as the dispatcher decides it."""
        return peer.is_admitted or self.admission.admit(cast("Any", peer), key)

    def prove(self, peer: Peer) -> None:
        self.admission.proven(cast("Any", peer))


@pytest.fixture
def world() -> World:
    """All connections that the settings allow are taken."""
    made = World()
    for _ in range(made.connections_max):
        assert made.connect().is_admitted
    return made


@pytest.mark.parametrize("limit", ["connections_max", "per_address"])
def test_a_broker_gets_in_and_counts_nowhere(world: World, limit: str) -> None:
    if limit == "per_address":
        world.connections_max, world.per_address = 1000, 2
    brokers = [world.connect() for _ in range(RESERVED_MAX + 10)]
    for peer in brokers[-RESERVED_MAX:]:
        assert world.sends(peer, ApiKey.API_VERSIONS)
        assert world.sends(peer, ApiKey.AUTHENTICATE_BROKER)
        assert not peer.is_admitted
        world.prove(peer)
        assert world.sends(peer)
        assert peer.core.allows_fast_path
    setattr(world, limit, 3)
    assert world.connect().is_admitted, "the brokers take none of the places"
    assert not world.connect().is_admitted


def test_a_broker_that_was_counted_leaves_its_place(world: World) -> None:
    world.connections_max = 3
    broker = world.connect()
    world.prove(broker)
    assert world.connect().is_admitted


def test_another_client_is_closed_at_its_first_request(world: World) -> None:
    peer = world.connect()
    assert not peer.core.allows_fast_path, "Produce must not get around it"
    assert world.sends(peer, ApiKey.API_VERSIONS)
    assert not world.sends(peer)
    assert peer.is_closed
    assert world.refused == ["connection limit"]


def test_who_says_nothing_is_closed_in_time_or_let_in(world: World) -> None:
    idle = world.connect()
    world.clock.advance(int(PROOF_WAIT_S * 500))
    world.admission.sweep()
    early = idle.is_closed
    world.clock.advance(int(PROOF_WAIT_S * 1000))
    world.admission.sweep()
    assert (early, idle.is_closed) == (False, True)
    waiting = world.connect()
    world.connections_max = 3
    world.admission.sweep()
    assert waiting.is_admitted
    assert waiting.core.allows_fast_path


def test_a_flood_cannot_fill_the_reserve(world: World) -> None:
    flood = [world.connect() for _ in range(3 * RESERVED_MAX)]
    assert [one.is_closed for one in flood] == [True] * (2 * RESERVED_MAX) + [False] * RESERVED_MAX
    broker = world.connect()
    assert world.sends(broker, ApiKey.AUTHENTICATE_BROKER)
    world.prove(broker)
    for _ in range(2 * RESERVED_MAX):
        world.connect()
    assert not broker.is_closed


def test_a_flood_of_another_address_does_not_close_a_broker_that_is_about_to_prove_itself(
    world: World,
) -> None:
    """However fast it is: tens of thousands a second leave a broker no milliseconds."""
    flood = [world.connect(FAR) for _ in range(RESERVED_MAX)]
    broker = world.connect(OURS)
    for number in range(20 * RESERVED_MAX):
        world.connect(FAR if number % 3 else "10.0.0.8")
        assert world.sends(broker, ApiKey.AUTHENTICATE_BROKER)
    assert not broker.is_closed
    world.prove(broker)
    assert world.sends(broker)
    assert all(one.is_closed for one in flood)


def test_an_administrator_on_this_machine_gets_in(world: World) -> None:
    tools = [world.connect(HERE) for _ in range(ADMINISTRATORS_MAX + 1)]
    assert [world.sends(one) for one in tools] == [True] * ADMINISTRATORS_MAX + [False]
    world.clock.advance(int(ADMINISTRATOR_HOLD_S * 1000))
    late = world.connect(HERE)
    assert world.sends(late), "those that stay too long make room"
    assert tools[0].is_closed
    assert not tools[1].is_closed


def test_an_administrator_gets_in_also_where_the_broker_does_not_listen_on_loopback(
    world: World,
) -> None:
    """From an address to that very address: only this machine can do so."""
    assert world.sends(world.connect(OURS, to=OURS))
    assert not world.sends(world.connect(FAR, to=OURS))
    assert not world.sends(world.connect("", to="")), "unknown is not the same"


def test_a_broker_on_this_machine_needs_no_place_of_an_administrator(world: World) -> None:
    for _ in range(ADMINISTRATORS_MAX + 1):
        broker = world.connect(HERE)
        assert world.sends(broker, ApiKey.AUTHENTICATE_BROKER)
        world.prove(broker)
    assert world.sends(world.connect(HERE))


def test_who_is_on_this_machine() -> None:
    assert all(is_local(one, OURS) for one in ("127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"))
    far = ("10.0.0.2", "::2", "::ffff:10.0.0.1", "128.0.0.1", "")
    assert not any(is_local(one, OURS) for one in far)
