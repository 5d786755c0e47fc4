"""Requests with callbacks instead of futures, and peers that do not read."""

import asyncio
from functools import partial

import pytest

from kits.rpc.rpc_kit import QUICK, Held, Pair, run_pending
from kits.rpc.rpc_server import Asked, Server, Session, echo, frame_of, name_of, question
from millstream.rpc import connection as connection_module
from millstream.rpc.connection import LARGE_PART_BYTES, connect
from millstream.rpc.errors import (
    ConnectionLost,
    RequestTimedOut,
    RpcError,
)
from millstream.rpc.settings import RpcSettings
from millstream.runtime.network import LoopNetwork
from millstream.wire.api_keys import ApiKey
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

# -- raw -------------------------------------------------------------------------------------------


def test_raw_requests_call_back_with_their_own_bytes_which_may_be_kept() -> None:
    pair = Pair(settings=RpcSettings(in_flight_max=100))
    outcomes: dict[int, memoryview | RpcError] = {}

    async def scenario() -> None:
        connection = await pair.connect()
        version = connection.version_of(MetadataRequest)
        for number in range(60):
            body = question(f"name-{number}").encode(version)
            connection.send_raw(
                ApiKey.METADATA,
                version,
                [body[:3], memoryview(body)[3:]],
                partial(outcomes.__setitem__, number),
            )
        assert not outcomes
        await run_pending()
        assert list(outcomes) == list(range(60))
        for number, outcome in outcomes.items():
            assert isinstance(outcome, memoryview)
            assert name_of(MetadataResponse.decode(outcome, version)) == f"name-{number}"

    pair.play(scenario)


def test_raw_requests_are_told_once_when_the_connection_ends() -> None:
    pair = Pair(Server(Held()))
    outcomes: list[memoryview | RpcError] = []

    async def scenario() -> None:
        connection = await pair.connect()
        for _ in range(3):
            connection.send_raw(ApiKey.METADATA, 1, [question("x").encode(1)], outcomes.append)
        connection.close("test")
        assert not outcomes  # never from within a call of ours
        await connection.wait_closed()
        assert [type(one) for one in outcomes] == [ConnectionLost] * 3
        with pytest.raises(ConnectionLost):
            connection.send_raw(ApiKey.METADATA, 1, [b""], outcomes.append)
        await run_pending()
        assert len(outcomes) == 3

    pair.play(scenario)


def test_a_callback_may_close_the_connection_while_more_answers_are_there() -> None:
    """All answers come in one piece; the first owner closes."""
    held = Held()
    pair = Pair(Server(held))
    outcomes: list[object] = []

    async def scenario() -> None:
        connection = await pair.connect()

        def first(outcome: memoryview | RpcError) -> None:
            outcomes.append(type(outcome))
            connection.close("enough")

        body = question("x").encode(1)
        connection.send_raw(ApiKey.METADATA, 1, [body], first)
        for _ in range(3):
            connection.send_raw(ApiKey.METADATA, 1, [body], lambda one: outcomes.append(type(one)))
        await run_pending()
        session = pair.server.session
        session.transport.write(b"".join(echo(asked) for _, asked in held.waiting))
        await run_pending()
        assert outcomes == [memoryview, ConnectionLost, ConnectionLost, ConnectionLost]

    pair.play(scenario)


def test_a_callback_may_send_and_room_is_told_to_the_hot_path() -> None:
    pair = Pair()
    outcomes: list[memoryview | RpcError] = []
    left = list(range(40))

    async def scenario() -> None:
        connection = await pair.connect()

        def send_more() -> None:
            while left and connection.has_room:
                body = question(f"{left.pop(0)}").encode(1)
                connection.send_raw(ApiKey.METADATA, 1, [body], outcomes.append)
                assert connection.in_flight <= QUICK.in_flight_max

        connection.when_room(send_more)
        send_more()
        waiting = asyncio.create_task(connection.send(question("between")))
        await asyncio.sleep(1)
        assert name_of(await waiting) == "between"
        names = [name_of(MetadataResponse.decode(one, 1)) for one in outcomes]  # type: ignore[arg-type]
        assert names == [f"{n}" for n in range(40)]

    pair.play(scenario)


def test_an_owner_that_fails_ends_the_connection_and_the_others_are_told() -> None:
    """On real sockets: asyncio closes a transport whose protocol raises."""

    async def main() -> None:
        server = Server(Held())
        listener = await server.listen(LoopNetwork(), "127.0.0.1", 0)
        connection = await connect(LoopNetwork(), QUICK, host="127.0.0.1", port=listener.port)
        outcomes: list[object] = []
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context.get("exception"))
        )

        def broken(outcome: memoryview | RpcError) -> None:
            raise ZeroDivisionError

        body = question("x").encode(1)
        connection.send_raw(ApiKey.METADATA, 1, [body], broken)
        connection.send_raw(ApiKey.METADATA, 1, [body], outcomes.append)
        held = server.on_request
        assert isinstance(held, Held)
        async with asyncio.timeout(20):
            await held.got_two.wait()
            held.release()
            await connection.wait_closed()
        assert isinstance(outcomes[0], ConnectionLost)
        assert isinstance(reported[0], ZeroDivisionError)
        listener.close()
        await listener.wait_closed()

    asyncio.run(main())


# -- back-pressure ---------------------------------------------------------------------------------


def test_a_peer_that_does_not_read_holds_back_writers_and_is_dropped_in_time() -> None:
    pair = Pair(settings=RpcSettings(request_timeout_s=5, in_flight_max=10_000))

    async def scenario() -> None:
        connection = await pair.connect()
        pair.server.session.transport.pause_reading()
        big = question("x" * 30_000)
        count = 0
        while connection.has_room:
            connection.send_nowait_no_response(big)
            count += 1
            assert count < 100
        with pytest.raises(RequestTimedOut) as failure:
            await connection.send(question("a"), timeout_s=1)
        assert not failure.value.may_have_been_processed
        assert connection.is_open
        await asyncio.sleep(4.5)
        assert connection.closed_reason == "the peer reads nothing"

    pair.play(scenario)


def test_writers_go_on_when_the_peer_reads_again() -> None:
    pair = Pair(settings=RpcSettings(request_timeout_s=5, in_flight_max=10_000))

    async def scenario() -> None:
        connection = await pair.connect()
        session = pair.server.session
        session.transport.pause_reading()
        sent = [
            asyncio.create_task(connection.send(question(f"{n}" + "x" * 30_000))) for n in range(60)
        ]
        await run_pending()
        assert not connection.has_room
        assert connection.in_flight < 20
        session.transport.resume_reading()
        names = [name_of(await one) for one in sent]
        assert [int((name or "").rstrip("x")) for name in names] == list(range(60))

    pair.play(scenario)


@pytest.mark.parametrize("joins", [True, False], ids=["apart", "together"])
def test_small_and_large_parts_leave_in_their_order(
    monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    """Whichever way the parts of a request reach the transport, the peer sees one request."""
    monkeypatch.setattr(connection_module, "JOINS_PARTS", joins)
    large = LARGE_PART_BYTES
    sizes = [3, 0, large, large - 1, 5, 7, large + 9, large, 1]
    parts = [bytearray([number + 1]) * size for number, size in enumerate(sizes)]
    asked: list[bytes] = []

    def keep(session: Session, one: Asked) -> None:
        asked.append(bytes(one.body))
        session.transport.write(frame_of(one, b""))

    pair = Pair(Server(keep))

    async def scenario() -> None:
        connection = await pair.connect()
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        connection.send_raw(ApiKey.METADATA, 1, parts, done.set_result)
        await done

    pair.play(scenario)
    assert asked == [b"".join(parts)]
