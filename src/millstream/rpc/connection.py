"""One connection to a broker: the shell around a `Pipeline`.

There are two ways to use it. `send` takes a message and returns the response, waits when too many
requests are in flight, and may be cancelled at any time. `send_raw` is for hot paths: bytes out, a
view in, a callback and no future; the caller checks `has_room` first and is called back when there
is room again. Both share the order of the connection.

Every request has a deadline. When one passes, the connection is closed: responses come in order, so
none behind the missing one can be expected either.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from millstream.model.invariant import invariant
from millstream.rpc.addresses import host_port
from millstream.rpc.errors import (
    ConnectFailed,
    ConnectionLost,
    PeerViolation,
    RequestTimedOut,
    RpcError,
)
from millstream.rpc.pipeline import Bytes, Pipeline
from millstream.rpc.settings import FIRST_RESPONSE_BYTES_MAX, RpcSettings
from millstream.rpc.versions import PeerApis, RetryWithVersion, read_api_versions
from millstream.runtime.network import Network
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.catalogue import response_type
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.primitives import MalformedFrame
from millstream.wire.schema import Message

OnDone = Callable[[memoryview | RpcError], None]
"""Called once, with the body of the response, which may be kept, or the error."""

_NEVER_S: Final = float("inf")

JOINS_PARTS: Final = sys.version_info < (3, 12)
"""Whether asyncio joins the parts of a write by copying before it sends them."""
LARGE_PART_BYTES: Final = 32 * 1024
"""From this size on a copy costs more than a system call."""


async def connect(network: Network, settings: RpcSettings, *, host: str, port: int) -> "Connection":
    """Connect and negotiate versions; raises ConnectFailed."""
    address = host_port(host, port)
    try:
        _, connection = await network.connect(
            lambda: Connection(address, settings),
            host=host,
            port=port,
            timeout_s=settings.connect_timeout_s,
            tls=settings.tls,
        )
    except (OSError, ValueError, OverflowError) as error:
        # The last two are invalid names and ports: they come from a peer's metadata.
        outcome = str(error) or type(error).__name__
        raise ConnectFailed(address, f"cannot connect: {outcome}") from error
    try:
        await connection.negotiate()
    except (PeerViolation, MalformedFrame) as error:
        connection.close(str(error))
        raise ConnectFailed(address, f"not a Kafka broker: {error}") from error
    except (ConnectionLost, RequestTimedOut) as error:
        raise ConnectFailed(address, f"no response to ApiVersions: {error}") from error
    except BaseException:
        connection.close("cancelled while connecting")
        raise
    return connection


class Connection(asyncio.BufferedProtocol):
    """Created by `connect`. All methods are called on the loop's thread."""

    def __init__(self, address: str, settings: RpcSettings) -> None:
        self.address = address
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._pipeline: Pipeline[OnDone] = Pipeline(
            client_id=settings.client_id, response_bytes_max=FIRST_RESPONSE_BYTES_MAX
        )
        self._apis: PeerApis | None = None
        self._closed_reason: str | None = None
        self._is_full = False
        """The transport's write buffer is full; it calls `resume_writing` when there is room."""
        self._full_until_s = _NEVER_S
        self._send_waiters: deque[asyncio.Future[None]] = deque()
        """Callers of `send` that wait for room, in order."""
        self._on_room: Callable[[], None] | None = None
        self._used_s = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()

    # -- state

    @property
    def is_open(self) -> bool:
        return self._closed_reason is None

    @property
    def closed_reason(self) -> str | None:
        return self._closed_reason

    @property
    def in_flight(self) -> int:
        """Requests that wait for a response."""
        return self._pipeline.in_flight

    @property
    def apis(self) -> PeerApis:
        """The APIs and versions that the peer serves."""
        invariant(self._apis is not None, "the versions are not agreed yet", to=self.address)
        return cast("PeerApis", self._apis)

    def version_of(self, request: type[Message], versions: range | None = None) -> int:
        """The version that `send` would use for such a request; raises UnsupportedApiVersion."""
        return self.apis.choose(request.API_KEY, versions)

    async def negotiate(self) -> None:
        """Send ApiVersions, the first request on every connection."""
        settings = self._settings
        request = ApiVersionsRequest(
            client_software_name=settings.software_name,
            client_software_version=settings.software_version,
        )
        version = APIS[ApiKey.API_VERSIONS].versions[-1]
        while True:
            body = request.encode(version)
            answer = await self._exchange(
                ApiKey.API_VERSIONS, version, body, self._deadline_s(settings.connect_timeout_s)
            )
            outcome = read_api_versions(answer, version)
            if not isinstance(outcome, RetryWithVersion):
                break
            version = outcome.version
        self._apis = PeerApis(outcome)
        self._pipeline.response_bytes_max = settings.response_bytes_max

    # -- messages

    async def send(
        self, request: Message, *, timeout_s: float | None = None, versions: range | None = None
    ) -> Any:
        """The response message of the request's API, in the highest version within `versions`.

        Raises an RpcError, MalformedFrame for a response that cannot be decoded, or ValueError for
        a request that the version cannot encode. When cancelled, the request stays in flight and
        its response is dropped.
        """
        key = request.API_KEY
        version = self.apis.choose(key, versions)
        body = request.encode(version)
        answer = await self._exchange(key, version, body, self._deadline_s(timeout_s))
        return response_type(key).decode(answer, version)

    async def _exchange(
        self, key: ApiKey, version: int, body: bytes, deadline_s: float
    ) -> memoryview:
        await self._wait_for_room(deadline_s)
        future: asyncio.Future[memoryview] = self._loop.create_future()

        def done(outcome: memoryview | RpcError) -> None:
            if future.done():  # cancelled
                return
            if isinstance(outcome, RpcError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self._begin(key, version, (body,), deadline_s, done)
        return await future

    def send_nowait_no_response(self, request: Message, *, versions: range | None = None) -> None:
        """Write a request without a response (Produce with acks=0); it may never arrive.

        Raises ConnectionLost when the connection is closed. Check `has_room` before: nothing else
        limits what is written.
        """
        version = self.apis.choose(request.API_KEY, versions)
        self.send_raw_no_response(request.API_KEY, version, (request.encode(version),))

    # -- bytes

    @property
    def has_room(self) -> bool:
        """Whether a request may be sent now: in-flight below the limit, write buffer not full."""
        return not self._is_full and self._pipeline.in_flight < self._settings.in_flight_max

    def when_room(self, callback: Callable[[], None] | None) -> None:
        """Set the callback for when there is room again after there was none.

        It is called while a response is handled, and may send.
        """
        self._on_room = callback

    def send_raw(
        self,
        key: ApiKey,
        version: int,
        body: Sequence[Bytes],
        on_done: OnDone,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Write a request made of parts; `on_done` is called once, later, never from here.

        The parts must not change until the response. Raises ConnectionLost when closed.
        """
        self._check_open()
        self._begin(key, version, body, self._deadline_s(timeout_s), on_done)

    def send_raw_no_response(self, key: ApiKey, version: int, body: Sequence[Bytes]) -> None:
        """`send_nowait_no_response` of parts."""
        self._check_open()
        self._write(self._pipeline.begin_without_response(key, version, body))

    def _begin(
        self, key: ApiKey, version: int, body: Sequence[Bytes], deadline_s: float, on_done: OnDone
    ) -> None:
        parts = self._pipeline.begin(key, version, body, deadline_s=deadline_s, owner=on_done)
        self._write(parts)
        self._set_timer_by(deadline_s)

    def _write(self, parts: list[Bytes]) -> None:
        self._used_s = self._loop.time()
        transport = cast("asyncio.Transport", self._transport)
        if JOINS_PARTS:
            _write_apart(transport, parts)
        else:
            transport.writelines(parts)

    def _check_open(self) -> None:
        if self._closed_reason is not None:
            raise ConnectionLost(self.address, self._closed_reason, may_have_been_processed=False)

    def _deadline_s(self, timeout_s: float | None) -> float:
        if timeout_s is None:
            timeout_s = self._settings.request_timeout_s
        return self._loop.time() + timeout_s

    def trim(self) -> None:
        """Free the buffers kept for large responses: none are expected for now."""
        self._pipeline.trim()

    # -- waiting for room

    async def _wait_for_room(self, deadline_s: float) -> None:
        """Wait until the request may be written; raises at the deadline and when closed."""
        self._check_open()
        if self.has_room and not self._send_waiters:
            return
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._send_waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline_s):
                await waiter
            self._check_open()
        except TimeoutError:
            raise RequestTimedOut(self.address, may_have_been_processed=False) from None
        finally:
            # Not already when it was woken: until it has written, others must stay behind it.
            self._send_waiters.remove(waiter)
            self._loop.call_soon(self._notify_room)

    def _notify_room(self) -> None:
        """Wake the first waiter, or call the hot path's callback if there is none."""
        if not self.has_room or not self.is_open:
            return
        if self._send_waiters:
            if not self._send_waiters[0].done():
                self._send_waiters[0].set_result(None)
        elif self._on_room is not None:
            self._on_room()

    # -- callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._set_timer_by(self._used_s + self._settings.idle_s)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        return self._pipeline.writable()

    def buffer_updated(self, nbytes: int) -> None:
        if not self.is_open:
            return  # a TLS transport may deliver a little more after its close
        self._pipeline.received(nbytes)
        self._used_s = self._loop.time()  # a long poll was not idle time
        had_room = self.has_room
        try:
            # One by one: what a response's owner does (close, send, fail) may change the rest.
            while (answer := self._pipeline.next_response()) is not None:
                answer.request.owner(answer.body)
        except PeerViolation as error:
            self._end(str(error), aborts=True)
            return
        if not had_room:
            self._notify_room()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def pause_writing(self) -> None:
        self._is_full = True
        # A peer that reads nothing is detected even if no request waits for a response.
        self._full_until_s = self._loop.time() + self._settings.request_timeout_s
        self._set_timer_by(self._full_until_s)

    def resume_writing(self) -> None:
        self._is_full = False
        self._full_until_s = _NEVER_S
        self._notify_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"connection lost: {exc}" if exc is not None else "closed by the peer")
        if not self._ended.done():
            self._ended.set_result(None)

    # -- time and end

    def _set_timer_by(self, at_s: float) -> None:
        """Make the timer fire no later than then."""
        if self._timer is not None:
            if self._timer.when() <= at_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(at_s, self._tick)

    def _tick(self) -> None:
        """One timer for all: the earliest deadline, a stuck peer, an idle connection."""
        self._timer = None
        now_s = self._loop.time()
        deadline_s = self._pipeline.next_deadline_s()
        idle_until_s = self._used_s + self._settings.idle_s
        if self._pipeline.in_flight or self._send_waiters or self._is_full:
            idle_until_s = now_s + self._settings.idle_s
        if deadline_s <= now_s:
            self._end("a request timed out", aborts=True, now_s=now_s)
        elif self._full_until_s <= now_s:
            self._end("the peer reads nothing", aborts=True)
        elif idle_until_s <= now_s:
            self._end("idle")
        else:
            self._set_timer_by(min(deadline_s, self._full_until_s, idle_until_s))

    def close(self, reason: str = "closed by us") -> None:
        """Close after written bytes have been sent; all waiting callers get ConnectionLost."""
        self._end(reason)

    async def wait_closed(self) -> None:
        """Wait until the transport is closed."""
        await asyncio.shield(self._ended)

    def _end(self, reason: str, *, aborts: bool = False, now_s: float = float("-inf")) -> None:
        """Close the connection; requests with a deadline up to `now_s` have timed out."""
        if self._closed_reason is not None:
            return
        self._closed_reason = reason
        if self._timer is not None:
            self._timer.cancel()
        transport = cast("asyncio.Transport", self._transport)
        if aborts:
            transport.abort()
        else:
            transport.close()
        for waiter in self._send_waiters:
            if not waiter.done():
                waiter.set_result(None)  # each finds the connection closed
        for request in self._pipeline.abandon():
            error: RpcError = ConnectionLost(self.address, reason, may_have_been_processed=True)
            if request.deadline_s <= now_s:
                error = RequestTimedOut(self.address, may_have_been_processed=True)
            self._loop.call_soon(request.owner, error)


def _write_apart(transport: asyncio.Transport, parts: list[Bytes]) -> None:
    """Write large parts as they are, and the small ones between them joined."""
    small: list[Bytes] = []
    for part in parts:
        if len(part) < LARGE_PART_BYTES:
            small.append(part)
            continue
        if small:
            transport.write(b"".join(small))
            small = []
        # A view: what the socket does not accept at once is copied once instead of twice.
        transport.write(memoryview(part))
    if small:
        transport.write(b"".join(small))
