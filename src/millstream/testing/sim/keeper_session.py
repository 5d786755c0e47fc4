"""The coordination port over the network seam, without kazoo and its threads: for simulations.

It behaves as the adapter over kazoo does (the contract suite says what that means), so a
simulated broker sees what a real one would: suspended sessions, lost answers, dropped watches.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar, cast

from millstream.coordination import errors, port
from millstream.coordination.checks import check_multi, check_path
from millstream.coordination.credentials import Credentials
from millstream.coordination.keeper.jute import JuteReader, pack_integer, pack_text
from millstream.coordination.keeper.protocol import (
    AUTH_XID,
    PASSWORD_BYTES,
    PING_XID,
    WATCH_XID,
    Code,
    Op,
)
from millstream.coordination.port import (
    Created,
    NodeChildren,
    NodeData,
    NodeKind,
    NodeStat,
    SessionState,
    Watcher,
    WatchEvent,
    WatchKind,
)
from millstream.model.ids import NO_SESSION, SessionId, Zxid
from millstream.runtime.clock import Clock
from millstream.runtime.network import Network
from millstream.testing.sim import keeper_requests as wire

T = TypeVar("T")

RETRY_S: Final = 0.05
CLOSE_TIMEOUT_S: Final = 2.0
_READ_BYTES: Final = 65_536


class _Pending(NamedTuple):
    xid: int
    answer: asyncio.Future[Any]
    read: Callable[[JuteReader], Any]
    path: str
    op: Op
    watch: Watcher | None


class WireCoordination:
    """Opens sessions with one server or with several that share their state."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        servers: Sequence[tuple[str, int]],
        credentials: Credentials | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._servers = list(servers)
        self._credentials = credentials

    async def connect(self, *, timeout_ms: int, wait_s: float) -> "WireSession":
        session = WireSession(
            self._network, self._clock, self._servers, timeout_ms, self._credentials
        )
        try:
            async with asyncio.timeout(wait_s):
                await session.connected()
        except TimeoutError:
            await session.close()
            raise errors.CannotConnect(f"no session within {wait_s} s") from None
        except BaseException:
            session.abandon()  # the caller no longer waits for it
            raise
        return session


class _Link(asyncio.BufferedProtocol):
    """One connection, whose whole frames go to the session."""

    def __init__(self, on_frame: Callable[["_Link", bytes], None]) -> None:
        self._on_frame = on_frame
        self._chunk = memoryview(bytearray(_READ_BYTES))
        self._input = bytearray()
        self.transport: asyncio.Transport | None = None
        self.is_established = False
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - one size serves all
        return self._chunk

    def buffer_updated(self, nbytes: int) -> None:
        self._input += self._chunk[:nbytes]
        while len(self._input) >= 4:
            end = 4 + int.from_bytes(self._input[:4], "big")
            if len(self._input) < end:
                return
            frame = bytes(self._input[4:end])
            del self._input[:end]
            self._on_frame(self, frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - gone is gone
        self.ended.set()

    def end(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        self.ended.set()


class WireSession:
    """One session; its task lives until the session is lost or closed."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        servers: Sequence[tuple[str, int]],
        timeout_ms: int,
        credentials: Credentials | None = None,
    ) -> None:
        self._network = network
        self._clock = clock
        self._credentials = credentials
        self._is_refused = False
        """Whether the session is gone because our credentials were not accepted."""
        self._servers = deque(servers)
        self.session_id: SessionId = NO_SESSION
        self.timeout_ms = timeout_ms
        self._password = bytes(PASSWORD_BYTES)
        self._last_zxid = Zxid(0)
        self._xid = 0
        self._link: _Link | None = None
        self._last_received_s = 0.0
        self._pending: deque[_Pending] = deque()
        self._data_watches: dict[str, list[Watcher]] = {}
        self._child_watches: dict[str, list[Watcher]] = {}
        self._listeners: list[port.StateListener] = []
        self._state = SessionState.SUSPENDED
        self._changed = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="wire session")

    @property
    def state(self) -> SessionState:
        return self._state

    def add_listener(self, listener: port.StateListener) -> None:
        self._listeners.append(listener)

    async def connected(self) -> None:
        while self._state is not SessionState.CONNECTED:
            if self._state is SessionState.LOST:
                raise self._lost()
            self._changed.clear()
            await self._changed.wait()

    # -- the port's requests ----------------------------------------------------------------

    async def create(
        self, path: str, data: bytes = b"", *, kind: NodeKind = NodeKind.PERSISTENT
    ) -> Created:
        check_path(path, kind)
        return await self._request(
            Op.CREATE2, path, wire.create(path, data, kind), wire.read_created
        )

    async def exists(self, path: str, *, watch: Watcher | None = None) -> NodeStat | None:
        check_path(path)
        body = wire.watched(path, watch=watch is not None)
        try:
            return await self._request(Op.EXISTS, path, body, wire.read_stat, watch)
        except errors.NoNode:
            return None

    async def get(self, path: str, *, watch: Watcher | None = None) -> NodeData:
        check_path(path)
        body = wire.watched(path, watch=watch is not None)
        return await self._request(Op.GET_DATA, path, body, wire.read_data, watch)

    async def children(self, path: str, *, watch: Watcher | None = None) -> NodeChildren:
        check_path(path)
        body = wire.watched(path, watch=watch is not None)
        return await self._request(Op.GET_CHILDREN2, path, body, wire.read_children, watch)

    async def set(self, path: str, data: bytes, *, version: int) -> NodeStat:
        check_path(path)
        body = wire.set_data(path, data, version)
        return await self._request(Op.SET_DATA, path, body, wire.read_stat)

    async def delete(self, path: str, *, version: int) -> None:
        check_path(path)
        await self._request(Op.DELETE, path, wire.versioned(path, version), wire.read_nothing)

    async def multi(self, operations: Sequence[port.Operation]) -> list[port.MultiResult]:
        check_multi(operations)
        return await self._request(
            Op.MULTI,
            "",
            wire.multi(operations),
            lambda reader: wire.read_multi(reader, operations),
        )

    async def sync(self, path: str) -> None:
        check_path(path)
        await self._request(Op.SYNC, path, pack_text(path), wire.read_nothing)

    async def close(self) -> None:
        if self._state is SessionState.CONNECTED:
            with suppress(errors.CoordinationError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._request(Op.CLOSE_SESSION, "", b"", wire.read_nothing)
        self._lose()
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    def abandon(self) -> None:
        """As `close`, without notifying the server and without waiting."""
        self._lose()
        self._task.cancel()

    async def _request(
        self,
        op: Op,
        path: str,
        body: bytes,
        read: Callable[[JuteReader], T],
        watch: Watcher | None = None,
    ) -> T:
        if self._state is SessionState.LOST:
            raise self._lost()
        link = self._link
        if self._state is not SessionState.CONNECTED or link is None or link.transport is None:
            raise errors.ConnectionLost("not connected", is_in_doubt=False)
        self._xid += 1
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._pending.append(_Pending(self._xid, answer, read, path, op, watch))
        link.transport.write(wire.frame(pack_integer(self._xid) + pack_integer(op) + body))
        return await answer

    # -- the session's life -----------------------------------------------------------------

    async def _run(self) -> None:
        while self._state is not SessionState.LOST:
            host, server_port = self._servers[0]
            self._servers.rotate(-1)
            try:
                _, link = await self._network.connect(
                    lambda: _Link(self._take_frame),
                    host=host,
                    port=server_port,
                    timeout_s=self.timeout_ms / 3000,
                )
            except OSError:
                await asyncio.sleep(RETRY_S)
                continue
            try:
                await self._use(link)
            finally:
                link.end()
                self._suspend()
            await asyncio.sleep(RETRY_S)

    async def _use(self, link: _Link) -> None:
        """Send the connect request, then ping until the connection ends or the server is silent."""
        self._link = link
        self._last_received_s = self._clock.monotonic_s()
        if link.transport is not None:
            link.transport.write(
                wire.connect_frame(
                    last_zxid=self._last_zxid,
                    timeout_ms=self.timeout_ms,
                    session_id=self.session_id,
                    password=self._password,
                )
            )
        while not link.ended.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.timeout_ms / 3000):
                    await link.ended.wait()
            if self._clock.monotonic_s() - self._last_received_s > self.timeout_ms / 1500:
                return
            if link.is_established and link.transport is not None:
                ping = pack_integer(PING_XID) + pack_integer(Op.PING)
                link.transport.write(wire.frame(ping))

    def _suspend(self) -> None:
        self._link = None
        pending, self._pending = self._pending, deque()
        for one in pending:
            if not one.answer.done():
                one.answer.set_exception(errors.ConnectionLost())
        if self._state is SessionState.CONNECTED:
            self._change(SessionState.SUSPENDED)
        self._drop_watches()

    def _lose(self) -> None:
        if self._state is SessionState.LOST:
            return
        self._change(SessionState.LOST)
        pending, self._pending = self._pending, deque()
        for one in pending:
            if not one.answer.done():
                one.answer.set_exception(self._lost())
        self._drop_watches()
        if self._link is not None:
            self._link.end()

    def _lost(self) -> errors.SessionLost:
        kind = errors.AuthenticationFailed if self._is_refused else errors.SessionLost
        return kind("the session is gone")

    def _drop_watches(self) -> None:
        tables = (self._data_watches, self._child_watches)
        dropped = [(path, one) for table in tables for path in table for one in table[path]]
        self._data_watches, self._child_watches = {}, {}
        for path, watcher in dropped:
            watcher(WatchEvent(WatchKind.DROPPED, path))

    def _change(self, state: SessionState) -> None:
        self._state = state
        self._changed.set()
        for listener in list(self._listeners):
            listener(state)

    # -- frames from the server -------------------------------------------------------------

    def _take_frame(self, link: _Link, frame: bytes) -> None:
        if link is not self._link:
            return
        self._last_received_s = self._clock.monotonic_s()
        reader = JuteReader(frame)
        if not link.is_established:
            self._take_connect_response(link, reader)
            return
        xid, zxid, code = reader.integer(), reader.long(), reader.integer()
        if xid == PING_XID:
            return
        if xid == AUTH_XID:
            if code == Code.OK:
                self._change(SessionState.CONNECTED)
            else:
                self._is_refused = True
                self._lose()
            return
        if xid == WATCH_XID:
            self._take_event(reader)
            return
        self._last_zxid = Zxid(max(self._last_zxid, zxid))
        self._take_answer(self._pending.popleft(), xid, code, reader)

    def _take_connect_response(self, link: _Link, reader: JuteReader) -> None:
        reader.integer()
        timeout_ms, session_id = reader.integer(), SessionId(reader.long())
        if timeout_ms <= 0:
            self._lose()
            return
        link.is_established = True
        self.timeout_ms, self.session_id = timeout_ms, session_id
        self._password = reader.buffer() or b""
        if self._credentials is None:
            self._change(SessionState.CONNECTED)
        elif link.transport is not None:
            link.transport.write(wire.auth_frame(self._credentials))

    def _take_answer(self, pending: _Pending, xid: int, code: int, reader: JuteReader) -> None:
        if xid != pending.xid:
            raise RuntimeError(f"answer {xid} where {pending.xid} was due")
        is_absent = code == Code.NO_NODE and pending.op == Op.EXISTS
        if pending.watch is not None and (code == Code.OK or is_absent):
            is_child = pending.op == Op.GET_CHILDREN2
            table = self._child_watches if is_child else self._data_watches
            table.setdefault(pending.path, []).append(pending.watch)
        if pending.answer.done():
            return  # the caller no longer waits
        if code != Code.OK:
            pending.answer.set_exception(wire.refusal(code, pending.path))
            return
        try:
            pending.answer.set_result(pending.read(reader))
        except errors.MultiFailed as error:
            pending.answer.set_exception(error)

    def _take_event(self, reader: JuteReader) -> None:
        kind = WatchKind(reader.integer())
        reader.integer()
        path = reader.text() or ""
        watchers: list[Watcher] = []
        if kind is not WatchKind.CHILDREN:
            watchers += self._data_watches.pop(path, [])
        if kind in (WatchKind.CHILDREN, WatchKind.DELETED):
            watchers += self._child_watches.pop(path, [])
        for watcher in watchers:
            watcher(WatchEvent(kind, path))
