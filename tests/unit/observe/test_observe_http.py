"""The HTTP side: what it answers, what it refuses, and that no peer can hold it up."""

import asyncio
import errno
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import parser

from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.exposition import TextFormat
from millstream.observe.http import (
    ANSWER_S,
    IDLE_S,
    REQUEST_S,
    REQUESTS_PER_CONNECTION_MAX,
)
from millstream.observe.http_places import (
    CONNECTIONS_MAX,
    OPEN_MAX,
    PER_ADDRESS_MAX,
    READER_WAIT_S,
    SCRAPES_MAX,
    YOUNG_S,
)
from millstream.observe.http_request import (
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    BadRequest,
    Request,
    take_request,
)
from millstream.observe.server import ObserveServer
from millstream.runtime.network import LoopNetwork
from millstream.testing.sim.world import SimWorld

GET = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"


class Client(asyncio.Protocol):
    """Sends bytes, keeps bytes."""

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False
        self.changed = asyncio.Event()
        self.transport: asyncio.Transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(1000):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def closed(self) -> bytes:
        await self.until(lambda: self.is_lost)
        return self.received


class Site:
    """A server in a simulated world, and ways to talk to it."""

    def __init__(self) -> None:
        self.world = SimWorld(3)
        self.metrics = BrokerMetrics()
        self.reason: str | None = None
        self.server = ObserveServer(
            self.world.network.host("server"),
            self.metrics,
            why_not_ready=lambda: self.reason,
        )
        self.port = 0

    async def connect(self) -> Client:
        transport, client = await self.world.network.host("client").connect(
            Client, host="server", port=self.port, timeout_s=10
        )
        client.transport = transport
        return client

    async def ask(self, sent: bytes) -> bytes:
        """Everything the server sends until it closes."""
        client = await self.connect()
        client.transport.write(sent)
        return await client.closed()

    def play(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            self.port = await self.server.start(host="server", port=0)
            await scenario()
            await self.server.close()

        self.world.run(main)


def answers(told: bytes) -> list[tuple[int, dict[str, str], bytes]]:
    """(status, headers, body) of every answer in the bytes; bodies by length or chunks."""
    found = []
    while told:
        head, _, told = told.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            size = -1
            while size:
                line, _, told = told.partition(b"\r\n")
                size = int(line, 16)
                body += told[:size]
                assert told[size : size + 2] == b"\r\n"
                told = told[size + 2 :]
        elif "content-length" in headers:
            size = int(headers["content-length"])
            body, told = told[:size], told[size:]
        else:
            body, told = told, b""
        assert first.startswith("HTTP/1.1 ")
        found.append((int(first.split()[1]), headers, body))
    return found


def one(told: bytes) -> tuple[int, dict[str, str], bytes]:
    (answer,) = answers(told)
    return answer


def request(
    path: str = "/metrics", *, method: str = "GET", headers: str = "", closes: bool = True
) -> bytes:
    connection = "Connection: close\r\n" if closes else ""
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\n{connection}{headers}\r\n".encode()


def test_metrics_health_and_readiness() -> None:
    site = Site()
    site.metrics.apis.observe(0, 100, 1, 1, 0)

    async def scenario() -> None:
        status, headers, body = one(await site.ask(request("/metrics?x=1")))
        assert (status, headers["content-type"]) == (200, TextFormat.PROMETHEUS)
        names = {family.name for family in parser.text_string_to_metric_families(body.decode())}
        assert {"millstream_requests", "millstream_loop_lag_seconds"} <= names
        openmetrics = request(headers="Accept: application/openmetrics-text\r\n")
        status, headers, body = one(await site.ask(openmetrics))
        assert headers["content-type"] == TextFormat.OPENMETRICS
        assert body.endswith(b"# EOF\n")
        assert one(await site.ask(request("/health")))[0] == 200
        assert one(await site.ask(request("/ready")))[::2] == (200, b"ready\n")
        site.reason = "logs are loading"
        status, _, body = one(await site.ask(request("/ready")))
        assert (status, body) == (503, b"not ready: logs are loading\n")
        assert one(await site.ask(request("http://any.host/health")))[0] == 200

    site.play(scenario)


def test_head_is_a_get_without_the_body() -> None:
    site = Site()

    async def scenario() -> None:
        for path in ("/metrics", "/health"):
            told = await site.ask(request(path, method="HEAD"))
            assert told.startswith(b"HTTP/1.1 200 ")
            assert told.endswith(b"\r\n\r\n")
            assert told.count(b"\r\n\r\n") == 1

    site.play(scenario)


def test_http_1_0_gets_a_body_that_ends_with_the_connection() -> None:
    site = Site()

    async def scenario() -> None:
        told = await site.ask(b"GET /metrics HTTP/1.0\r\n\r\n")
        _, headers, body = one(told)
        assert "transfer-encoding" not in headers
        assert b"millstream_connections" in body
        kept = await site.ask(b"GET /metrics HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert one(kept)[1]["connection"] == "close"

    site.play(scenario)


def test_pipelined_requests_are_answered_in_order_at_every_cut() -> None:
    """The simulated link also cuts what was written at random places."""
    site = Site()
    sent = b"".join(
        [
            request("/health", closes=False),
            request("/metrics", closes=False),
            request("/nothing", closes=False),
            request("/health", method="DELETE", closes=False),
            *([request("/ready", closes=False)] * 10),
            request("/health"),
            request("/ready"),
        ]
    )

    async def scenario() -> None:
        for step in (1, 7, 50, len(sent)):
            client = await site.connect()
            for place in range(0, len(sent), step):
                client.transport.write(sent[place : place + step])
            statuses = [status for status, _, _ in answers(await client.closed())]
            assert statuses == [200, 200, 404, 405, *[200] * 11]

    site.play(scenario)


def test_answers_are_finished_after_the_peer_said_its_last_word() -> None:
    site = Site()

    async def scenario() -> None:
        client = await site.connect()
        client.transport.write(request("/metrics", closes=False) * 3)
        client.transport.write_eof()
        assert [status for status, _, _ in answers(await client.closed())] == [200, 200, 200]

    site.play(scenario)


BAD: list[tuple[bytes, int]] = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
    (b"\x00\x00\x00\x14\x00\x12\x00\x03", 400),  # Kafka
    (b"\r\n\r\n", 400),
    (b"GET /metrics\r\n\r\n", 400),
    (b"GET  /metrics HTTP/1.1\r\n\r\n", 400),
    (b"GET /met rics HTTP/1.1\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\nHost: x\n\r\n\r\n", 400),
    (b"GET /m\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
    (b"GET /metrics HTTP/1.1\r\nHost: x\x00\r\n\r\n", 400),
    (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello", 413),
    (b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 413),
    (b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    (b"GET /" + b"a" * HEAD_BYTES_MAX, 431),
    (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * (HEADERS_MAX + 1) + b"\r\n", 431),
]


@pytest.mark.parametrize(("sent", "status"), BAD)
def test_bad_input_is_answered_once_and_the_connection_closed(sent: bytes, status: int) -> None:
    site = Site()

    async def scenario() -> None:
        answer = one(await site.ask(sent))
        assert (answer[0], answer[1]["connection"]) == (status, "close")
        # Also behind a good request, whose answer comes first.
        told = answers(await site.ask(request("/health", closes=False) + sent))
        assert [one[0] for one in told] == [200, status]
        assert one(await site.ask(request("/health")))[0] == 200

    site.play(scenario)


@given(
    st.binary(max_size=200) | st.builds(lambda a, b: GET[:a] + b, st.integers(0, 40), st.binary())
)
def test_any_bytes_are_a_request_or_refused_or_wait_for_more(data: bytes) -> None:
    buffer = bytearray(data)
    try:
        while (taken := take_request(buffer)) is not None:
            assert isinstance(taken, Request)
            assert len(buffer) < len(data)
    except BadRequest:
        pass
    else:
        assert len(buffer) < HEAD_BYTES_MAX


# -- peers that hold up ----------------------------------------------------------------------------


def test_a_silent_peer_is_dropped() -> None:
    site = Site()

    async def scenario() -> None:
        client = await site.connect()
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        assert await client.closed() == b""
        assert IDLE_S - 1 < loop.time() - start_s < IDLE_S + 1
        assert not site.server.connections

    site.play(scenario)


def test_a_peer_that_sends_byte_by_byte_is_dropped() -> None:
    """Every byte is in time; the request is not."""
    site = Site()

    async def scenario() -> None:
        client = await site.connect()
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        for byte in GET:
            client.transport.write(bytes([byte]))
            await asyncio.sleep(1)
        await client.closed()
        assert client.received == b""
        assert loop.time() - start_s < len(GET) + 2
        assert len(GET) > REQUEST_S

    site.play(scenario)


def test_a_kept_connection_may_pause_between_requests() -> None:
    site = Site()

    async def scenario() -> None:
        client = await site.connect()
        for count in range(1, 4):
            client.transport.write(request("/health", closes=False))
            await client.until(lambda count=count: client.received.count(b"ok\n") == count)  # type: ignore[misc]
            await asyncio.sleep(60)
            assert not client.is_lost

    site.play(scenario)


def test_a_peer_that_takes_no_answer_is_dropped_and_costs_little() -> None:
    site = Site()
    rows = [((f"{number:0100d}",), number) for number in range(20_000)]
    site.metrics.register_labelled("rows", "Rows", lambda: rows, label_names=["n"])

    async def scenario() -> None:
        client = await site.connect()
        client.transport.pause_reading()
        for _ in range(100):
            client.transport.write(request(closes=False))
        await asyncio.sleep(1)
        (connection,) = site.server.connections
        assert connection._transport.get_write_buffer_size() < 1_000_000
        await asyncio.sleep(REQUEST_S + 1)
        assert not site.server.connections

    site.play(scenario)


def test_a_slow_reader_gets_everything() -> None:
    site = Site()
    rows = [((f"{number:0100d}",), number) for number in range(20_000)]
    site.metrics.register_labelled("rows", "Rows", lambda: rows, label_names=["n"])

    async def scenario() -> None:
        client = await site.connect()
        client.transport.write(request())
        while not client.is_lost:
            client.transport.pause_reading()
            await asyncio.sleep(0.5)
            client.transport.resume_reading()
            await asyncio.sleep(0.01)
        assert one(client.received)[2].count(b"\nmillstream_rows{") == 20_000

    site.play(scenario)


def test_probes_and_scrapes_are_answered_at_once_while_others_hold_connections() -> None:
    """Idle ones, such as say half a request, and such as read no answer."""
    site = Site()
    rows = [((f"{number:01000d}",), number) for number in range(1_000)]
    site.metrics.register_labelled("rows", "Rows", lambda: rows, label_names=["n"])

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for sent in (b"", GET[:-2], GET):
            for _ in range(2 * CONNECTIONS_MAX):
                client = await site.connect()
                client.transport.pause_reading()
                client.transport.write(sent)
            for path, within_s in (("/health", 0.5), ("/metrics", 5 * READER_WAIT_S)):
                start_s = loop.time()
                assert one(await site.ask(request(path)))[0] == 200
                assert loop.time() - start_s < within_s

    site.play(scenario)


def test_the_connections_of_least_use_give_way_to_new_ones() -> None:
    """One that was asked a moment ago stays longer than those that never asked."""
    site = Site()

    async def scenario() -> None:
        idle = [await site.connect() for _ in range(PER_ADDRESS_MAX)]
        await asyncio.sleep(YOUNG_S)
        used = await site.connect()
        used.transport.write(request("/health", closes=False))
        await idle[0].closed()
        await asyncio.sleep(1)
        assert [client.is_lost for client in idle[1:]] == [False] * (PER_ADDRESS_MAX - 1)
        used.transport.write(request("/health"))
        assert (await used.closed()).count(b"ok\n") == 2

    site.play(scenario)


def test_open_connections_are_limited_at_every_moment() -> None:
    """Also while all of them are young: the oldest goes."""
    site = Site()

    async def scenario() -> None:
        first = await site.connect()
        for _ in range(OPEN_MAX + 10):
            await site.connect()
            assert len(site.server.connections) <= OPEN_MAX
        assert await first.closed() == b""
        assert one(await site.ask(request("/health")))[0] == 200

    site.play(scenario)


def test_few_scrapes_are_written_at_a_time_and_all_of_them_end() -> None:
    site = Site()
    begun = 0

    def rows() -> Iterator[list[tuple[tuple[str, ...], float]]]:
        nonlocal begun
        begun += 1
        for number in range(40):
            yield [((f"{number:020000d}",), number)]

    site.metrics.register_stepwise("rows", "Rows", rows, label_names=["n"])

    async def scenario() -> None:
        clients = [await site.connect() for _ in range(3 * SCRAPES_MAX)]
        for client in clients:
            client.transport.pause_reading()
            client.transport.write(request())
        await asyncio.sleep(READER_WAIT_S / 2)
        assert begun == SCRAPES_MAX
        for client in clients:
            client.transport.resume_reading()
        assert [one(await client.closed())[0] for client in clients] == [200] * len(clients)

    site.play(scenario)


def test_a_connection_ends_with_its_last_request() -> None:
    """So a flood of them takes turns in connecting with everybody else."""
    site = Site()

    async def scenario() -> None:
        client = await site.connect()
        client.transport.write(request("/health", closes=False) * (REQUESTS_PER_CONNECTION_MAX + 5))
        assert (await client.closed()).count(b"ok\n") == REQUESTS_PER_CONNECTION_MAX

    site.play(scenario)


def test_no_reader_keeps_an_answer_for_long() -> None:
    """Every chunk is taken in time; the answer is not."""
    site = Site()
    rows = [((f"{number:0100d}",), number) for number in range(30_000)]
    site.metrics.register_labelled("rows", "Rows", lambda: rows, label_names=["n"])

    async def scenario() -> None:
        client = await site.connect()
        client.transport.write(request())
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        while not client.is_lost:
            client.transport.pause_reading()
            await asyncio.sleep(0.9 * REQUEST_S)
            client.transport.resume_reading()
            await asyncio.sleep(0.001)
        assert ANSWER_S - REQUEST_S < loop.time() - start_s < ANSWER_S + REQUEST_S

    site.play(scenario)


def test_the_loop_serves_others_between_two_pieces() -> None:
    """On a real loop: there every turn of it is one that others get."""
    metrics = BrokerMetrics()
    rows = [((str(number),), number) for number in range(50_000)]
    metrics.register_labelled("rows", "Rows", lambda: rows, label_names=["n"])

    async def main() -> None:
        server = ObserveServer(LoopNetwork(), metrics, why_not_ready=lambda: None)
        port = await server.start(host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        asked = asyncio.ensure_future(reader.read())
        turns = 0
        async with asyncio.timeout(60):
            while not asked.done():
                turns += 1
                await asyncio.sleep(0)
        assert b"\nmillstream_rows{" in await asked
        assert turns > len(rows) / 600
        writer.close()
        await writer.wait_closed()
        await server.close()

    asyncio.run(main())


def test_on_real_sockets() -> None:
    async def main() -> None:
        server = ObserveServer(LoopNetwork(), BrokerMetrics(), why_not_ready=lambda: None)
        port = await server.start(host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        async with asyncio.timeout(20):
            assert one(await reader.read())[0] == 200
            writer.close()
            await writer.wait_closed()
            await server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

    asyncio.run(main())


class Occupied(LoopNetwork):
    """A machine on which some ports cannot be had; 0 is whatever the system would choose."""

    __slots__ = ("ports",)

    def __init__(self, *ports: int) -> None:
        self.ports = ports

    async def listen(self, make_protocol: Any, *, port: int, **options: Any) -> Any:
        if port in self.ports:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        return await super().listen(make_protocol, port=port, **options)


def test_a_port_that_nobody_asked_for_is_another_one_or_none() -> None:
    async def started(*occupied: int) -> int | None:
        server = ObserveServer(Occupied(*occupied), BrokerMetrics(), why_not_ready=lambda: None)
        try:
            return await server.start_on_any_port(host="127.0.0.1", port=9404)
        finally:
            await server.close()

    found = asyncio.run(started(9404))
    assert found is not None
    assert found != 9404
    assert asyncio.run(started(9404, 0)) is None


def test_what_only_scrapes_need_is_prepared_once_with_the_first() -> None:
    prepared: list[str] = []

    async def main() -> None:
        server = ObserveServer(
            LoopNetwork(),
            BrokerMetrics(),
            why_not_ready=lambda: None,
            prepare=lambda: prepared.append("now"),
        )
        port = await server.start(host="127.0.0.1", port=0)
        assert prepared == []
        async with asyncio.timeout(20):
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request())
                assert one(await reader.read())[0] == 200
                writer.close()
                await writer.wait_closed()
            await server.close()

    asyncio.run(main())
    assert prepared == ["now"]


def test_a_step_that_found_nothing_does_not_end_the_answer() -> None:
    """In a chunked body a chunk without bytes is the end."""
    metrics = BrokerMetrics()
    steps: list[list[tuple[tuple[str, ...], float]]] = [[], [(("1",), 1)], [], [(("2",), 2)], []]
    metrics.register_stepwise("steps", "Steps", lambda: steps, label_names=["n"])

    async def main() -> None:
        server = ObserveServer(LoopNetwork(), metrics, why_not_ready=lambda: None)
        port = await server.start(host="127.0.0.1", port=0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        async with asyncio.timeout(20):
            _, _, body = one(await reader.read())
            writer.close()
            await writer.wait_closed()
            await server.close()
        for number in (b"1", b"2"):
            assert b'millstream_steps{n="%b"} %b\n' % (number, number) in body
        assert body.count(b"# TYPE millstream_steps gauge\n") == 1

    asyncio.run(main())
