"""One connection per address: shared, made again, with back-off, given up cleanly."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from kits.rpc.rpc_server import PORT, Server, name_of, question
from millstream.rpc.backoff import Backoff
from millstream.rpc.connection import Connection
from millstream.rpc.connections import ADDRESSES_MAX, Address, Connections
from millstream.rpc.errors import ConnectFailed, ConnectionLost
from millstream.rpc.settings import RpcSettings
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.network import SimNetwork
from millstream.testing.sim.world import SimWorld

HERE = Address("server", PORT)
BACKOFF = Backoff(initial_s=1.0, max_s=8.0, factor=2.0, jitter=0.0)


Prepare = Callable[[Connection], Coroutine[Any, Any, None]]


class Pool:
    """A server that may be down, and a pool."""

    def __init__(
        self, prepare: Callable[[Connection], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        self.world = SimWorld(5)
        self.network: SimNetwork = self.world.network
        self.server = Server()
        self.connections = Connections(
            self.network.host("client"),
            RpcSettings(connect_timeout_s=3),
            SeededRandomness(1),
            backoff=BACKOFF,
            prepare=prepare,
        )

    async def start(self) -> None:
        await self.server.listen(self.network.host("server"), "server")

    def play(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await scenario()
            await self.connections.close()
            await asyncio.sleep(0.1)  # until the server has heard
            assert self.network.connection_count("client", "server") == 0

        self.world.run(main)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_whoever_asks_gets_the_same_connection() -> None:
    pool = Pool()

    async def scenario() -> None:
        await pool.start()
        assert pool.connections.existing(HERE) is None
        got = await asyncio.gather(*(pool.connections.get(HERE) for _ in range(20)))
        assert len(set(map(id, got))) == len(pool.server.sessions) == 1
        assert await pool.connections.get(HERE) is got[0] is pool.connections.existing(HERE)
        other = await pool.connections.get(Address("server", PORT, "fetch"))
        assert other is not got[0]
        assert len(pool.server.sessions) == 2

    pool.play(scenario)


def test_a_connection_that_is_gone_is_made_again_without_delay() -> None:
    pool = Pool()

    async def scenario() -> None:
        await pool.start()
        first = await pool.connections.get(HERE)
        first.close()
        assert pool.connections.existing(HERE) is None
        start_s = now_s()
        second = await pool.connections.get(HERE)
        assert now_s() - start_s < 0.1
        assert name_of(await second.send(question("x"))) == "x"

    pool.play(scenario)


def test_failures_are_followed_by_longer_and_longer_waits() -> None:
    pool = Pool()

    async def scenario() -> None:
        waits_s = []
        for _ in range(6):
            start_s = now_s()
            with pytest.raises(ConnectFailed, match="refused"):
                await pool.connections.get(HERE)
            waits_s.append(now_s() - start_s)
        assert waits_s == pytest.approx([0, 1, 2, 4, 8, 8], abs=0.05)
        assert pool.connections.wait_s(HERE) == pytest.approx(8, abs=0.05)
        assert pool.connections.wait_s(Address("other", 1)) == 0
        await pool.start()
        connection = await pool.connections.get(HERE)
        connection.close()
        assert pool.connections.wait_s(HERE) == 0
        await pool.connections.get(HERE)

    pool.play(scenario)


def test_one_who_gives_up_leaves_the_attempt_to_the_others() -> None:
    pool = Pool()

    async def scenario() -> None:
        await pool.start()
        pool.network.clog("client", "server", duration_s=1)
        impatient, patient = (asyncio.create_task(pool.connections.get(HERE)) for _ in range(2))
        await asyncio.sleep(0.5)
        impatient.cancel()
        connection = await patient
        assert impatient.cancelled()
        assert connection.is_open

    pool.play(scenario)


def test_a_failure_that_nobody_waits_for_any_more_is_no_error() -> None:
    pool = Pool()

    async def scenario() -> None:
        asked = asyncio.create_task(pool.connections.get(HERE))
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.sleep(1)
        assert asked.cancelled()

    pool.play(scenario)


def test_preparing_is_part_of_connecting_and_its_failure_is_told() -> None:
    refusals = [True, False]
    prepared: list[Connection] = []

    async def prepare(connection: Connection) -> None:
        await connection.send(question("login"))
        if refusals.pop(0):
            raise PermissionError("no entry")
        prepared.append(connection)

    pool = Pool(prepare)

    async def scenario() -> None:
        await pool.start()
        with pytest.raises(PermissionError):
            await pool.connections.get(HERE)
        assert pool.connections.existing(HERE) is None
        assert pool.connections.wait_s(HERE) > 0
        assert await pool.connections.get(HERE) is prepared[0]

    pool.play(scenario)


def test_closing_ends_connections_and_attempts() -> None:
    pool = Pool()

    async def scenario() -> None:
        await pool.start()
        connection = await pool.connections.get(HERE)
        pool.network.partition("client", "elsewhere")
        attempt = asyncio.create_task(pool.connections.get(Address("elsewhere", 1)))
        waiting = asyncio.create_task(connection.send(question("x")))
        await asyncio.sleep(0)
        await pool.connections.close()
        with pytest.raises(ConnectFailed, match="closed"):
            await attempt
        with pytest.raises(ConnectionLost):
            await waiting
        assert not connection.is_open

    pool.play(scenario)


def test_made_up_addresses_cannot_fill_the_memory() -> None:
    pool = Pool()

    async def scenario() -> None:
        for number in range(ADDRESSES_MAX + 100):
            pool.connections._attempts_of(Address("x", number))
        assert len(pool.connections._attempts) == ADDRESSES_MAX

    pool.play(scenario)
