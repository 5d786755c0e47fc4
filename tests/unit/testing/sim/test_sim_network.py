"""Network faults: cuts hold bytes, resets break, silent deaths leave peers half-open."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.testing.sim.transport import SimTransport
from millstream.testing.sim.world import SimWorld


class Peer(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.arrivals_s: list[float] = []
        self.lost_with: list[Exception | None] = []
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.arrivals_s.append(asyncio.get_running_loop().time())

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_with.append(exc)


class Pair:
    """A world with hosts a (client) and b (server) and one connection between them."""

    def __init__(self, seed: int = 1) -> None:
        self.world = SimWorld(seed)
        self.network = self.world.network
        self.a, self.b = Peer(), Peer()
        self.transport: SimTransport

    async def connect(self) -> None:
        await self.network.host("b").listen(lambda: self.b, host="b", port=9092)
        self.transport, _ = await self.network.host("a").connect(
            lambda: self.a, host="b", port=9092, timeout_s=5
        )

    def play(self, scenario: Callable[["Pair"], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.connect()
            await scenario(self)

        self.world.run(main)


def test_a_partition_holds_bytes_and_healing_delivers_them_in_order() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.partition("a", "b")
        pair.a.transport.write(b"one")
        pair.b.transport.write(b"answer")
        await asyncio.sleep(100)
        pair.a.transport.write(b"two")
        await asyncio.sleep(100)
        assert pair.b.received == pair.a.received == b""
        pair.network.heal("a", "b")
        await asyncio.sleep(1)
        assert (pair.b.received, pair.a.received) == (b"onetwo", b"answer")

    Pair().play(scenario)


def test_a_one_way_cut_lets_the_other_direction_flow() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.cut("a", "b")
        pair.a.transport.write(b"held")
        pair.b.transport.write(b"flows")
        await asyncio.sleep(10)
        assert (pair.b.received, pair.a.received) == (b"", b"flows")
        pair.network.mend("a", "b")
        await asyncio.sleep(1)
        assert pair.b.received == b"held"

    Pair().play(scenario)


def test_bytes_under_way_when_the_link_is_cut_wait_too() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.slow_down("a", "b", delay_range_s=(5, 5))
        pair.a.transport.write(b"x")
        await asyncio.sleep(1)
        pair.network.cut("a", "b")
        await asyncio.sleep(50)
        assert pair.b.received == b""
        pair.network.heal_all()
        await asyncio.sleep(1)
        assert pair.b.received == b"x"

    Pair().play(scenario)


def test_a_clog_ends_by_itself_and_delays_are_kept() -> None:
    async def scenario(pair: Pair) -> None:
        start_s = asyncio.get_running_loop().time()
        pair.network.clog("a", "b", duration_s=30)
        pair.a.transport.write(b"x")
        await asyncio.sleep(60)
        assert pair.b.arrivals_s == [start_s + 30]
        pair.network.slow_down("a", "b", delay_range_s=(3, 4))
        sent_s = asyncio.get_running_loop().time()
        pair.a.transport.write(b"y")
        await asyncio.sleep(10)
        assert 3 <= pair.b.arrivals_s[-1] - sent_s <= 4

    Pair().play(scenario)


@pytest.mark.parametrize("seed", range(5))
def test_order_within_a_connection_holds_whatever_the_delays(seed: int) -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.slow_down("a", "b", delay_range_s=(0, 2))
        sent = b""
        for number in range(300):
            piece = f"{number};".encode()
            pair.a.transport.write(piece)
            sent += piece
            await asyncio.sleep(0.01)
        await asyncio.sleep(10)
        assert pair.b.received == sent
        assert len(pair.b.arrivals_s) > 300  # some were split

    Pair(seed).play(scenario)


def test_connecting_through_a_cut_times_out_or_succeeds_after_healing() -> None:
    async def scenario(pair: Pair) -> None:
        host = pair.network.host("c")
        pair.network.cut("b", "c")
        with pytest.raises(TimeoutError):
            await host.connect(Peer, host="b", port=9092, timeout_s=3)
        await asyncio.sleep(1)
        assert [type(error) for error in pair.b.lost_with] == [ConnectionResetError]
        pair.world.loop.call_later(5, pair.network.mend, "b", "c")
        await host.connect(Peer, host="b", port=9092, timeout_s=30)

    Pair().play(scenario)


def test_a_reset_breaks_the_connections_of_the_two_hosts_only() -> None:
    async def scenario(pair: Pair) -> None:
        other = Peer()
        await pair.network.host("c").listen(lambda: other, host="c", port=1)
        await pair.network.host("a").connect(Peer, host="c", port=1, timeout_s=5)
        pair.a.transport.write(b"lost")
        pair.network.reset("a", "b")
        await asyncio.sleep(10)
        for peer in (pair.a, pair.b):
            assert [type(error) for error in peer.lost_with] == [ConnectionResetError]
        assert pair.b.received == b""
        assert other.lost_with == []
        assert pair.network.connection_count("a", "b") == 0
        pair.a.transport.write(b"ignored")

    Pair().play(scenario)


def test_a_killed_process_resets_its_peers_and_hears_nothing() -> None:
    async def scenario(pair: Pair) -> None:
        pair.network.kill_host("b")
        await asyncio.sleep(1)
        assert [type(error) for error in pair.a.lost_with] == [ConnectionResetError]
        assert pair.b.lost_with == []
        with pytest.raises(ConnectionRefusedError):
            await pair.network.host("a").connect(Peer, host="b", port=9092, timeout_s=5)

    Pair().play(scenario)


def test_a_silent_death_leaves_a_half_open_peer_until_it_sends_to_the_new_process() -> None:
    async def scenario(pair: Pair) -> None:
        pair.b.transport.write(b"under way, never arrives")
        pair.network.kill_host("b", is_silent=True)
        pair.a.transport.write(b"x")
        await asyncio.sleep(1000)
        assert (pair.a.lost_with, pair.a.received) == ([], b"")
        with pytest.raises(TimeoutError):
            await pair.network.host("a").connect(Peer, host="b", port=9092, timeout_s=5)
        pair.network.revive_host("b")
        await asyncio.sleep(1)
        assert [type(error) for error in pair.a.lost_with] == [ConnectionResetError]
        assert pair.b.received == b""

    Pair().play(scenario)


def test_a_writer_that_was_held_up_hears_of_a_silent_death_too() -> None:
    """It has nothing more to send; what it sent before is repeated until a reset comes."""

    async def scenario(pair: Pair) -> None:
        pair.b.transport.pause_reading()
        pair.a.transport.write(bytes(1_000_000))
        pair.network.kill_host("b", is_silent=True)
        await asyncio.sleep(1000)
        assert pair.a.lost_with == []
        pair.network.revive_host("b")
        await asyncio.sleep(1)
        assert [type(error) for error in pair.a.lost_with] == [ConnectionResetError]

    Pair().play(scenario)


def test_writing_to_a_closed_peer_is_answered_with_a_reset() -> None:
    class StaysOpen(Peer):
        def eof_received(self) -> bool:
            return True

    async def scenario(pair: Pair) -> None:
        pair.b.transport.close()
        await asyncio.sleep(1)
        assert pair.a.lost_with == []
        pair.a.transport.write(b"anyone there?")
        await asyncio.sleep(1)
        assert [type(error) for error in pair.a.lost_with] == [ConnectionResetError]

    pair = Pair()
    pair.a = StaysOpen()
    pair.play(scenario)
