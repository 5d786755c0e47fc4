"""The connection over a simulated network: turns, deadlines, cancelling, ends, back-pressure."""

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from struct import pack
from typing import Any

import pytest

from millstream.rpc import connection as connection_module
from millstream.rpc.connection import LARGE_PART_BYTES, Connection, connect
from millstream.rpc.errors import (
    ConnectFailed,
    ConnectionLost,
    RequestTimedOut,
    RpcError,
    UnsupportedApiVersion,
)
from millstream.rpc.settings import FIRST_RESPONSE_BYTES_MAX, RpcSettings
from millstream.runtime.network import LoopNetwork
from millstream.testing.sim_world import SimWorld
from millstream.wire.api_keys import ApiKey
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.primitives import MalformedFrame
from rpc_server import (
    PORT,
    Asked,
    Server,
    Session,
    answer_at_once,
    echo,
    frame_of,
    name_of,
    question,
)

QUICK = RpcSettings(client_id="me", request_timeout_s=5.0, connect_timeout_s=3.0, in_flight_max=4)


class Pair:
    """A server and a client in one world."""

    def __init__(self, server: Server | None = None, settings: RpcSettings = QUICK) -> None:
        self.world = SimWorld(11)
        self.server = server if server is not None else Server()
        self.settings = settings

    async def connect(self) -> Connection:
        return await connect(
            self.world.network.host("client"), self.settings, host="server", port=PORT
        )

    def play(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            await self.server.listen(self.world.network.host("server"), "server")
            await scenario()

        self.world.run(main)


class Held:
    """An `on_request` that answers when told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Session, Asked]] = []
        self.got_two = asyncio.Event()

    def __call__(self, session: Session, asked: Asked) -> None:
        self.waiting.append((session, asked))
        if len(self.waiting) == 2:
            self.got_two.set()

    def release(self, count: int = 1 << 30) -> None:
        for session, asked in self.waiting[:count]:
            session.transport.write(echo(asked))
        del self.waiting[:count]


async def settle() -> None:
    """Let everything under way arrive: links take at most two milliseconds."""
    await asyncio.sleep(0.1)


def now_s() -> float:
    return asyncio.get_running_loop().time()


# -- answers ---------------------------------------------------------------------------------------


def test_many_requests_at_once_each_get_their_answer() -> None:
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.connect()
        names = [f"topic-{n}" for n in range(50)]
        responses = await asyncio.gather(*(connection.send(question(name)) for name in names))
        assert [name_of(one) for one in responses] == names
        assert [one.correlation_id for one in pair.server.session.asked] == list(range(1, 51))
        assert {one.client_id for one in pair.server.session.asked} == {"me"}

    pair.play(scenario)


def test_never_more_in_flight_than_allowed_and_first_come_first_served() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        names = [f"{n}" for n in range(11)]
        async with asyncio.TaskGroup() as tasks:
            sent = [tasks.create_task(connection.send(question(name))) for name in names]
            while not all(one.done() for one in sent):
                await settle()
                assert len(held.waiting) == min(4, len([one for one in sent if not one.done()]))
                assert connection.in_flight == len(held.waiting)
                held.release(1)
        assert [name_of(one.result()) for one in sent] == names
        order = [
            MetadataRequest.decode(one.body, one.version).topics
            for one in pair.server.session.asked
        ]
        assert [topics[0].name for topics in order if topics] == names

    pair.play(scenario)


def test_versions_are_the_highest_in_common_and_may_be_narrowed() -> None:
    pair = Pair(Server(ranges={ApiKey.API_VERSIONS: range(5), ApiKey.METADATA: range(2, 10)}))

    async def scenario() -> None:
        connection = await pair.connect()
        assert connection.version_of(MetadataRequest) == 9
        await connection.send(question("a"))
        await connection.send(question("a"), versions=range(3, 6))
        assert [one.version for one in pair.server.session.asked] == [9, 5]
        with pytest.raises(UnsupportedApiVersion):
            await connection.send(question("a"), versions=range(10, 13))
        with pytest.raises(UnsupportedApiVersion):
            connection.send_nowait_no_response(ProduceRequest())
        assert connection.is_open

    pair.play(scenario)


@pytest.mark.parametrize("known", [range(1), range(3), range(4)], ids=str)
def test_an_older_broker_is_asked_for_its_versions_in_its_own_way(known: range) -> None:
    pair = Pair(Server(ranges={ApiKey.API_VERSIONS: known, ApiKey.METADATA: range(5)}))

    async def scenario() -> None:
        connection = await pair.connect()
        assert name_of(await connection.send(question("x"))) == "x"

    pair.play(scenario)


def test_a_broker_that_says_nothing_about_its_versions_gets_version_0() -> None:
    """Before KIP-511: only the error."""
    versions = []

    def old(session: Session, asked: Asked) -> None:
        if asked.key is not ApiKey.API_VERSIONS:
            answer_at_once(session, asked)
            return
        versions.append(asked.version)
        body = pack(">hi", 35, 0) if asked.version else pack(">hihhh", 0, 1, 3, 0, 1)
        session.transport.write(frame_of(asked, body, version=0))

    pair = Pair(Server(old, answers_versions=False))

    async def scenario() -> None:
        connection = await pair.connect()
        assert name_of(await connection.send(question("x"))) == "x"
        assert versions[-1] == 0
        assert len(versions) == 2

    pair.play(scenario)


def test_an_answer_that_cannot_be_read_is_an_error_of_its_request_alone() -> None:
    bad = [True, False]

    def server(session: Session, asked: Asked) -> None:
        session.transport.write(frame_of(asked, b"\xff" * 3) if bad.pop(0) else echo(asked))

    pair = Pair(Server(server))

    async def scenario() -> None:
        connection = await pair.connect()
        with pytest.raises(MalformedFrame):
            await connection.send(question("a"))
        assert name_of(await connection.send(question("b"))) == "b"

    pair.play(scenario)


def test_a_request_its_version_cannot_carry_leaves_the_connection_alone() -> None:
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.connect()
        with pytest.raises(ValueError, match="MetadataRequest"):
            await connection.send(MetadataRequest(topics=None), versions=range(1))
        assert name_of(await connection.send(question("b"))) == "b"
        assert connection.in_flight == 0

    pair.play(scenario)


# -- time ------------------------------------------------------------------------------------------


def test_a_request_without_an_answer_times_out_and_takes_the_connection_with_it() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        start_s = now_s()
        patient = asyncio.create_task(connection.send(question("patient"), timeout_s=60))
        with pytest.raises(RequestTimedOut) as timed_out:
            await connection.send(question("x"), timeout_s=2)
        assert now_s() - start_s == pytest.approx(2, abs=0.01)
        assert timed_out.value.may_have_been_processed
        with pytest.raises(ConnectionLost, match="timed out") as lost:
            await patient
        assert lost.value.may_have_been_processed
        assert not connection.is_open
        with pytest.raises(ConnectionLost) as after:
            await connection.send(question("later"))
        assert not after.value.may_have_been_processed
        held.release()  # too late, to nobody
        await settle()
        assert pair.server.session.is_lost

    pair.play(scenario)


def test_a_request_that_never_got_its_turn_times_out_alone() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        first = [asyncio.create_task(connection.send(question(f"{n}"))) for n in range(4)]
        await settle()
        with pytest.raises(RequestTimedOut) as failure:
            await connection.send(question("waits"), timeout_s=1)
        assert not failure.value.may_have_been_processed
        assert connection.is_open
        held.release()
        assert [name_of(await one) for one in first] == ["0", "1", "2", "3"]
        pair.server.on_request = answer_at_once
        assert name_of(await connection.send(question("next"))) == "next"
        assert len(pair.server.session.asked) == 5

    pair.play(scenario)


def test_the_shorter_deadline_of_a_later_request_is_kept() -> None:
    pair = Pair(Server(Held()))

    async def scenario() -> None:
        connection = await pair.connect()
        start_s = now_s()
        outcomes = await asyncio.gather(
            connection.send(question("a"), timeout_s=100),
            connection.send(question("b"), timeout_s=1),
            return_exceptions=True,
        )
        assert now_s() - start_s == pytest.approx(1, abs=0.01)
        assert [type(one) for one in outcomes] == [ConnectionLost, RequestTimedOut]

    pair.play(scenario)


def test_an_idle_connection_closes_itself_and_a_busy_one_does_not() -> None:
    held = Held()
    pair = Pair(Server(held), RpcSettings(idle_s=100, request_timeout_s=1000))

    async def scenario() -> None:
        connection = await pair.connect()
        waiting = asyncio.create_task(connection.send(question("long poll")))
        await asyncio.sleep(500)
        assert connection.is_open
        held.release()
        assert name_of(await waiting) == "long poll"
        pair.server.on_request = answer_at_once
        for _ in range(5):
            await asyncio.sleep(60)
            await connection.send(question("x"))
        await asyncio.sleep(101)
        assert connection.closed_reason == "idle"
        await connection.wait_closed()
        await settle()
        assert pair.server.session.is_lost

    pair.play(scenario)


# -- cancelling ------------------------------------------------------------------------------------


def test_a_cancelled_request_does_not_shift_the_answers_of_others() -> None:
    held = Held()
    pair = Pair(Server(held))

    async def scenario() -> None:
        connection = await pair.connect()
        sent = [asyncio.create_task(connection.send(question(f"{n}"))) for n in range(8)]
        await settle()
        for number in (1, 2, 5):  # in flight, in flight, waiting for its turn
            sent[number].cancel()
        while any(not one.done() for one in sent):
            held.release()
            await settle()
        assert [one.cancelled() for one in sent] == [n in (1, 2, 5) for n in range(8)]
        for number in (0, 3, 4, 6, 7):
            assert name_of(sent[number].result()) == f"{number}"
        assert connection.in_flight == 0
        assert len(pair.server.session.asked) == 7

    pair.play(scenario)


def test_a_turn_that_was_given_to_a_cancelled_request_goes_to_the_next() -> None:
    held = Held()
    pair = Pair(Server(held), RpcSettings(in_flight_max=1))

    async def scenario() -> None:
        connection = await pair.connect()
        loop = asyncio.get_running_loop()
        second: asyncio.Task[Any]

        def first(_: memoryview | RpcError) -> None:
            loop.call_soon(second.cancel)  # after its turn was given, before it runs

        connection.send_raw(ApiKey.METADATA, 1, [question("first").encode(1)], first)
        second = asyncio.create_task(connection.send(question("second")))
        third = asyncio.create_task(connection.send(question("third")))
        await settle()
        held.release()
        await settle()
        assert second.cancelled()
        held.release()
        assert name_of(await third) == "third"

    pair.play(scenario)


def test_a_cancelled_request_that_is_never_answered_still_ends_the_connection_in_time() -> None:
    pair = Pair(Server(Held()))

    async def scenario() -> None:
        connection = await pair.connect()
        sent = asyncio.create_task(connection.send(question("x")))
        await settle()
        sent.cancel()
        await asyncio.sleep(QUICK.request_timeout_s)
        assert connection.closed_reason == "a request timed out"

    pair.play(scenario)


# -- ends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "abort", "kill"])
def test_when_the_connection_ends_everyone_is_told_what_may_have_happened(end: str) -> None:
    pair = Pair(Server(Held()))

    async def scenario() -> None:
        connection = await pair.connect()
        sent = [asyncio.create_task(connection.send(question(f"{n}"))) for n in range(6)]
        await settle()
        match end:
            case "close":
                pair.server.session.transport.close()
            case "abort":
                pair.server.session.transport.abort()
            case _:
                pair.world.network.kill_host("server")
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(one, ConnectionLost) for one in outcomes)
        may_have_been = [
            one.may_have_been_processed for one in outcomes if isinstance(one, RpcError)
        ]
        assert may_have_been == [True] * 4 + [False] * 2
        await connection.wait_closed()

    pair.play(scenario)


def test_closing_sends_what_was_written_first() -> None:
    pair = Pair()

    async def scenario() -> None:
        connection = await pair.connect()
        connection.send_nowait_no_response(ProduceRequest(acks=0))
        connection.close()
        with pytest.raises(ConnectionLost, match="closed by us"):
            connection.send_nowait_no_response(ProduceRequest(acks=0))
        await connection.wait_closed()
        await settle()
        assert [one.key for one in pair.server.session.asked] == [ApiKey.PRODUCE]

    pair.server.on_request = lambda session, asked: None
    pair.play(scenario)


def test_requests_without_an_answer_keep_the_order_of_the_others() -> None:
    def server(session: Session, asked: Asked) -> None:
        if asked.key is ApiKey.METADATA:
            answer_at_once(session, asked)

    pair = Pair(Server(server))

    async def scenario() -> None:
        connection = await pair.connect()
        first = asyncio.create_task(connection.send(question("a")))
        await asyncio.sleep(0)
        connection.send_nowait_no_response(ProduceRequest(acks=0))
        assert name_of(await connection.send(question("b"))) == "b"
        assert name_of(await first) == "a"
        keys = [one.key for one in pair.server.session.asked]
        assert keys == [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.METADATA]

    pair.play(scenario)


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
        with pytest.raises(ConnectFailed, match="no list of versions"):
            await pair.connect()
        assert now_s() < QUICK.connect_timeout_s + 1
        await settle()
        assert pair.server.session.is_lost

    pair.play(scenario)


def test_cancelling_a_connect_leaves_no_connection() -> None:
    pair = Pair(Server(Held(), answers_versions=False))

    async def scenario() -> None:
        connecting = asyncio.create_task(pair.connect())
        await settle()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await settle()
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


# -- raw -------------------------------------------------------------------------------------------


def test_raw_requests_call_back_with_their_own_bytes_which_may_be_kept() -> None:
    pair = Pair(settings=RpcSettings(in_flight_max=100))
    told: dict[int, memoryview | RpcError] = {}

    async def scenario() -> None:
        connection = await pair.connect()
        version = connection.version_of(MetadataRequest)
        for number in range(60):
            body = question(f"name-{number}").encode(version)
            connection.send_raw(
                ApiKey.METADATA,
                version,
                [body[:3], memoryview(body)[3:]],
                partial(told.__setitem__, number),
            )
        assert not told
        await settle()
        assert list(told) == list(range(60))
        for number, outcome in told.items():
            assert isinstance(outcome, memoryview)
            assert name_of(MetadataResponse.decode(outcome, version)) == f"name-{number}"

    pair.play(scenario)


def test_raw_requests_are_told_once_when_the_connection_ends() -> None:
    pair = Pair(Server(Held()))
    told: list[memoryview | RpcError] = []

    async def scenario() -> None:
        connection = await pair.connect()
        for _ in range(3):
            connection.send_raw(ApiKey.METADATA, 1, [question("x").encode(1)], told.append)
        connection.close("test")
        assert not told  # never from within a call of ours
        await connection.wait_closed()
        assert [type(one) for one in told] == [ConnectionLost] * 3
        with pytest.raises(ConnectionLost):
            connection.send_raw(ApiKey.METADATA, 1, [b""], told.append)
        await settle()
        assert len(told) == 3

    pair.play(scenario)


def test_a_callback_may_close_the_connection_while_more_answers_are_there() -> None:
    """All answers come in one piece; the first owner closes."""
    held = Held()
    pair = Pair(Server(held))
    told: list[object] = []

    async def scenario() -> None:
        connection = await pair.connect()

        def first(outcome: memoryview | RpcError) -> None:
            told.append(type(outcome))
            connection.close("enough")

        body = question("x").encode(1)
        connection.send_raw(ApiKey.METADATA, 1, [body], first)
        for _ in range(3):
            connection.send_raw(ApiKey.METADATA, 1, [body], lambda one: told.append(type(one)))
        await settle()
        session = pair.server.session
        session.transport.write(b"".join(echo(asked) for _, asked in held.waiting))
        await settle()
        assert told == [memoryview, ConnectionLost, ConnectionLost, ConnectionLost]

    pair.play(scenario)


def test_a_callback_may_send_and_room_is_told_to_the_hot_path() -> None:
    pair = Pair()
    told: list[memoryview | RpcError] = []
    left = list(range(40))

    async def scenario() -> None:
        connection = await pair.connect()

        def send_more() -> None:
            while left and connection.has_room:
                body = question(f"{left.pop(0)}").encode(1)
                connection.send_raw(ApiKey.METADATA, 1, [body], told.append)
                assert connection.in_flight <= QUICK.in_flight_max

        connection.when_room(send_more)
        send_more()
        waiting = asyncio.create_task(connection.send(question("between")))
        await asyncio.sleep(1)
        assert name_of(await waiting) == "between"
        names = [name_of(MetadataResponse.decode(one, 1)) for one in told]  # type: ignore[arg-type]
        assert names == [f"{n}" for n in range(40)]

    pair.play(scenario)


def test_an_owner_that_fails_ends_the_connection_and_the_others_are_told() -> None:
    """On real sockets: asyncio closes a transport whose protocol raises."""

    async def main() -> None:
        server = Server(Held())
        listener = await server.listen(LoopNetwork(), "127.0.0.1", 0)
        connection = await connect(LoopNetwork(), QUICK, host="127.0.0.1", port=listener.port)
        told: list[object] = []
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context.get("exception"))
        )

        def broken(outcome: memoryview | RpcError) -> None:
            raise ZeroDivisionError

        body = question("x").encode(1)
        connection.send_raw(ApiKey.METADATA, 1, [body], broken)
        connection.send_raw(ApiKey.METADATA, 1, [body], told.append)
        held = server.on_request
        assert isinstance(held, Held)
        async with asyncio.timeout(20):
            await held.got_two.wait()
            held.release()
            await connection.wait_closed()
        assert isinstance(told[0], ConnectionLost)
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
        assert connection.closed_reason == "the peer takes no bytes"

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
        await settle()
        assert not connection.has_room
        assert connection.in_flight < 20
        session.transport.resume_reading()
        names = [name_of(await one) for one in sent]
        assert [int((name or "").rstrip("x")) for name in names] == list(range(60))

    pair.play(scenario)


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
        await settle()
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
        await settle()
        held.waiting.reverse()
        held.release()
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(one, ConnectionLost) for one in outcomes)
        assert "where 1 is due" in str(outcomes[0])

    pair.play(scenario)


def test_an_answer_too_many_ends_the_connection() -> None:
    def twice(session: Session, asked: Asked) -> None:
        session.transport.write(echo(asked) * 2)

    pair = Pair(Server(twice))

    async def scenario() -> None:
        connection = await pair.connect()
        assert name_of(await connection.send(question("x"))) == "x"
        await settle()
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
