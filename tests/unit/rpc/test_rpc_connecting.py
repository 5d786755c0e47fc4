"""Connecting over a simulated network, and servers that send what they should not."""

import asyncio
import ssl
from struct import pack
from typing import Any

import pytest

from kits.rpc.rpc_kit import QUICK, Held, Pair, now_s, run_pending
from kits.rpc.rpc_server import PORT, Asked, Server, Session, echo, name_of, question
from millstream.rpc.connection import connect
from millstream.rpc.errors import (
    ConnectFailed,
    ConnectionLost,
    RequestTimedOut,
)
from millstream.rpc.settings import FIRST_RESPONSE_BYTES_MAX, RpcSettings
from millstream.runtime.network import LoopNetwork
from millstream.testing.sim.world import SimWorld

# -- connecting ------------------------------------------------------------------------------------


def test_nobody_there_is_a_failed_connect() -> None:
    world = SimWorld(1)

    async def scenario() -> None:
        with pytest.raises(ConnectFailed, match="refused") as failure:
            await connect(world.network.host("client"), QUICK, host="server", port=PORT)
        assert not failure.value.may_have_been_processed

    world.run(scenario)


def test_a_host_that_does_not_answer_is_a_failed_connect_in_time() -> None:
    pair = Pair()

    async def scenario() -> None:
        pair.world.network.partition("client", "server")
        start_s = now_s()
        with pytest.raises(ConnectFailed):
            await pair.connect()
        assert now_s() - start_s == pytest.approx(QUICK.connect_timeout_s, abs=0.01)

    pair.play(scenario)


def test_a_server_that_never_tells_its_versions_is_a_failed_connect_in_time() -> None:
    pair = Pair(Server(Held(), answers_versions=False))

    async def scenario() -> None:
        with pytest.raises(ConnectFailed, match="no response to ApiVersions"):
            await pair.connect()
        assert now_s() < QUICK.connect_timeout_s + 1
        await run_pending()
        assert pair.server.session.is_lost

    pair.play(scenario)


def test_cancelling_a_connect_leaves_no_connection() -> None:
    pair = Pair(Server(Held(), answers_versions=False))

    async def scenario() -> None:
        connecting = asyncio.create_task(pair.connect())
        await run_pending()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await run_pending()
        assert pair.world.network.connection_count("client", "server") == 0

    pair.play(scenario)


@pytest.mark.parametrize("host", ["no such host", "a" * 300, "a..b", "\u0000"])
def test_a_name_that_cannot_be_is_a_failed_connect(host: str) -> None:
    """Hosts and ports come from a peer's metadata."""

    async def main() -> None:
        for port in (PORT, 70_000, -1):
            with pytest.raises(ConnectFailed):
                await connect(LoopNetwork(), QUICK, host=host, port=port)

    asyncio.run(main())


def test_the_tls_context_reaches_the_network() -> None:
    context = ssl.create_default_context()

    class Refusing(LoopNetwork):
        async def connect(self, *_: Any, tls: ssl.SSLContext | None = None, **__: Any) -> Any:
            assert tls is context
            raise ssl.SSLCertVerificationError("bad certificate")

    async def main() -> None:
        settings = RpcSettings(tls=context)
        with pytest.raises(ConnectFailed, match="bad certificate"):
            await connect(Refusing(), settings, host="server", port=PORT)

    asyncio.run(main())


# -- hostile servers -------------------------------------------------------------------------------

GARBAGE = [
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"\x15\x03\x03\x00\x02\x02\x50",  # a TLS alert
    pack(">i", -1),
    pack(">i", 0),
    pack(">i", 3) + b"abc",
    pack(">i", 2**31 - 1),
    pack(">ii", 4, 77),
    pack(">ii", 6, 0) + b"\x00\x07",
    b"\xff" * 100,
]


@pytest.mark.parametrize("sent", GARBAGE)
def test_garbage_instead_of_the_versions_is_a_failed_connect(sent: bytes) -> None:
    pair = Pair(
        Server(lambda session, asked: session.transport.write(sent), answers_versions=False)
    )

    async def scenario() -> None:
        with pytest.raises(ConnectFailed):
            await pair.connect()
        await run_pending()
        assert pair.world.network.connection_count("client", "server") == 0

    pair.play(scenario)


def test_a_huge_list_of_versions_is_refused_by_its_size() -> None:
    pair = Pair(
        Server(
            lambda session, asked: session.transport.write(
                pack(">i", FIRST_RESPONSE_BYTES_MAX + 1)
            ),
            answers_versions=False,
        )
    )

    async def scenario() -> None:
        with pytest.raises(ConnectFailed, match="frame of"):
            await pair.connect()
        assert now_s() < 1

    pair.play(scenario)


@pytest.mark.parametrize("sent", GARBAGE)
def test_garbage_instead_of_an_answer_ends_the_connection_and_tells_everyone(sent: bytes) -> None:
    pair = Pair(Server(lambda session, asked: session.transport.write(sent)))

    async def scenario() -> None:
        connection = await pair.connect()
        outcomes = await asyncio.gather(
            *(connection.send(question("x"), timeout_s=2) for _ in range(3)), return_exceptions=True
        )
        for one in outcomes:
            assert isinstance(one, ConnectionLost | RequestTimedOut)
            assert one.may_have_been_processed
        assert not connection.is_open

    pair.play(scenario)


def test_answers_in_the_wrong_order_reach_nobody() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        sent = [asyncio.create_task(connection.send(question(f"{n}"))) for n in range(2)]
        await run_pending()
        held.waiting.reverse()
        held.release()
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(one, ConnectionLost) for one in outcomes)
        assert "expected 1" in str(outcomes[0])

    pair.play(scenario)


def test_an_answer_too_many_ends_the_connection() -> None:
    def twice(session: Session, asked: Asked) -> None:
        session.transport.write(echo(asked) * 2)

    pair = Pair(Server(twice))

    async def scenario() -> None:
        connection = await pair.connect()
        assert name_of(await connection.send(question("x"))) == "x"
        await run_pending()
        assert not connection.is_open

    pair.play(scenario)


def test_an_answer_above_the_limit_ends_the_connection_before_it_is_read() -> None:
    def huge(session: Session, asked: Asked) -> None:
        session.transport.write(pack(">ii", 2_000_000, asked.correlation_id))

    pair = Pair(Server(huge), RpcSettings(response_bytes_max=1_999_999))

    async def scenario() -> None:
        connection = await pair.connect()
        with pytest.raises(ConnectionLost, match="frame of 2000000"):
            await connection.send(question("x"))

    pair.play(scenario)
