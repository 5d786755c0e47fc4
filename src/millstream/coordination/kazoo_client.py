"""kazoo's client, adapted to the port's rules.

kazoo hands answers, watches and states to three threads, which loses their order, queues requests
made while it is not connected, opens a new session when the old one expired, and accepts any length
that the server sends. Here everything goes to the event loop in the order of the wire, requests
without a connection fail, one client is one session, and lengths are bounded. It also pings three
times in a session timeout, so that a pause of two thirds of it may be the end of the session; here
it pings more often.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    SessionExpiredError,
    ZookeeperError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.serialization import PingInstance
from kazoo.protocol.states import KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import ACL, make_acl

from millstream.coordination.credentials import SCHEME, Credentials
from millstream.coordination.kazoo_logs import RateLimitFilter
from millstream.model.limits import MIB
from millstream.runtime.clock import Clock

ANSWER_BYTES_MAX: Final = 64 * MIB
"""The children of a node with a million of them; anything longer is not from a server."""

RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
"""Between two rounds through the servers: a session of six seconds must get several chances."""

CONNECT_SHARE: Final = 3
"""The fraction of the session timeout for connecting, shared by all servers: when one does not
answer, the others must still be tried before the session expires."""

PINGS_PER_TIMEOUT: Final = 12
"""While one call of C holds the interpreter's lock, no thread of the process runs, kazoo's neither:
such a call may take a session timeout less the age of the last ping."""

_SOCKETS_WHEN_IDLE: Final = 2
"""kazoo waits for both, the server and requests of other threads, only between two messages."""

log = logging.getLogger("millstream.coordination.kazoo")
log.addFilter(RateLimitFilter(log))


class Access(NamedTuple):
    """Who a session is, and for whom its nodes are."""

    credentials: Credentials
    sets_acl: bool = True
    """Whether nodes are created for the cluster only; without, for everybody."""

    def acl(self) -> list[ACL] | None:
        """Of nodes that are created; None for an open one."""
        if not self.sets_acl:
            return None
        return [make_acl(SCHEME, self.credentials.identity(), all=True)]


class NotSent(ConnectionLoss):  # type: ignore[misc] # kazoo has no types
    """There was no connection, so the request was never sent."""


class _LoopQueue:
    """The queue for kazoo's callbacks: calls them on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def put(self, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed, and no caller waits any more
            self._loop.call_soon_threadsafe(work)


class LoopHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Runs all callbacks of kazoo's thread on the loop, in the same order."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, *, connect_timeout_s: float
    ) -> None:
        super().__init__()
        self.completion_queue = self.callback_queue = _LoopQueue(loop)
        self._connect_timeout_s = connect_timeout_s
        self._now_s: Callable[[], float] = clock.monotonic_s
        self._due_s = 0.0
        self._ping: Callable[[], float] | None = None

    def ping_with(self, ping: Callable[[], float]) -> None:
        """`ping` sends one, in kazoo's thread, and returns the seconds to the next."""
        self._ping = ping

    @property
    def running(self) -> bool:
        return True  # otherwise kazoo's thread would make the calls itself

    def start(self) -> None:
        """It has no threads of its own."""

    def stop(self) -> None:
        """Nothing to wait for."""

    def select(self, reads: Any, writes: Any, errors: Any, timeout: float | None = None) -> Any:
        """Where kazoo's thread waits: for answers and requests, or for one socket's bytes."""
        if self._ping is None or timeout is None or len(reads) < _SOCKETS_WHEN_IDLE:
            return super().select(reads, writes, errors, timeout)
        deadline_s = self._now_s() + timeout
        while True:
            if self._due_s <= self._now_s():
                self._due_s = self._now_s() + self._ping()
            until_s = min(deadline_s, self._due_s)
            found = super().select(reads, writes, errors, max(0.0, until_s - self._now_s()))
            if found[0] or self._now_s() >= deadline_s:
                return found

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        requested_s = options.get("timeout") or self._connect_timeout_s
        options["timeout"] = min(self._connect_timeout_s, requested_s)
        return super().create_connection(*arguments, **options)


class _BoundedConnection(ConnectionHandler):  # type: ignore[misc]
    """Refuses lengths that no server sends, records the granted timeout, and pings often."""

    granted_ms = 0
    on_connected: Callable[[], None] = staticmethod(lambda: None)
    """Called when the server has accepted the session and the credentials; kazoo's own state
    changes before it has sent the latter."""

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        found = super()._connect(host, hostip, port)
        self.on_connected()
        return found

    def ping(self) -> float:
        """Send a ping besides kazoo's own, which check that an answer comes; until the next."""
        interval_s = self.granted_ms / 1000 / PINGS_PER_TIMEOUT
        self._submit(PingInstance, interval_s, PING_XID)
        return interval_s

    def _read(self, length: int, timeout: float) -> bytes:
        if not 0 <= length <= ANSWER_BYTES_MAX:
            raise ConnectionDropped(f"an answer of {length} bytes")
        data: bytes = super()._read(length, timeout)
        return data

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        try:
            found = super()._invoke(timeout, request, xid)
        except (AuthFailedError, SessionExpiredError):
            raise
        except (ZookeeperError, RuntimeError) as error:
            # kazoo's thread would end with any other answer to a proof.
            raise ConnectionDropped(f"refused: {type(error).__name__}: {error}") from error
        if request.type is None:  # the first request of a connection
            self.granted_ms = found[0].time_out
        return found


class SessionClient(KazooClient):  # type: ignore[misc]
    """A client for one session. `start_async` and `end` block; `end` may take long."""

    def __init__(
        self, hosts: str, handler: LoopHandler, *, timeout_ms: int, access: Access | None = None
    ) -> None:
        retry = KazooRetry(
            max_tries=-1,
            delay=RETRY_FIRST_S,
            max_delay=RETRY_MAX_S,
            sleep_func=handler.sleep_func,
        )
        super().__init__(
            hosts,
            timeout=timeout_ms / 1000,
            handler=handler,
            connection_retry=retry,
            logger=log,
            # kazoo sends it again on every new connection, before any other request.
            auth_data=None if access is None else {(SCHEME, access.credentials.packet())},
            default_acl=None if access is None else access.acl(),
        )
        self._connection = _BoundedConnection(self, self._conn_retry.copy(), logger=log)
        handler.ping_with(self._connection.ping)

    def when_connected(self, call: Callable[[], None]) -> None:
        """Called in kazoo's thread whenever the session has a connection."""
        self._connection.on_connected = call

    @property
    def granted_ms(self) -> int:
        granted: int = self._connection.granted_ms
        return granted

    @property
    def is_refused(self) -> bool:
        """Whether the service did not accept the credentials."""
        return bool(self._state == KeeperState.AUTH_FAILED)

    @property
    def current_session_id(self) -> int:
        return self._session_id or 0

    def abandon(self) -> None:
        """Open no other session. From any thread, never blocks."""
        self._stopped.set()

    def end(self, *, timeout_s: float) -> None:
        """Close the session where there is a connection, and wait for kazoo's thread."""
        if not self._stopped.is_set():
            with suppress(OSError, AttributeError):
                self.stop_soon()
        if self._connection.connection_stopped.wait(timeout_s):
            self._connection.stop(timeout_s)
            self.close()

    def stop_soon(self) -> None:
        """`stop` without its wait."""
        from kazoo.protocol.serialization import CloseInstance

        self._stopped.set()
        self._queue.append((CloseInstance, None))
        self._connection._write_sock.send(b"\0")  # noqa: SLF001 - as kazoo's own `stop` does

    def _call(self, request: Any, async_object: Any) -> Any:
        """Queue a request only for the current connection.

        kazoo would send it whenever it is connected again, long after its caller got the answer
        that the outcome is unknown.
        """
        result = super()._call(request, async_object)
        if self._state == KeeperState.CONNECTING:
            # The connection is gone: either its loss has failed the request, or it is still in the
            # queue.
            try:
                self._queue.remove((request, async_object))
            except ValueError:
                return result
            async_object.set_exception(NotSent())
        return result
