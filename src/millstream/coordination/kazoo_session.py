"""The port over kazoo: one session with ZooKeeper or with the embedded keeper.

The rules, and where they come from:
- kazoo's thread pings whatever the event loop does, so a thread of ours closes the session when
  the loop hangs, and not when it is only busy (see `watchdog.py`).
- Suspended is not lost: only the service decides that a session is gone. `state` shows the loss at
  once, whichever thread noticed it.
- Everything that blocks in kazoo is done by that thread of ours, never on the loop and never in
  one of kazoo's callbacks.
- A lost connection drops all watches: each is called with DROPPED.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from kazoo import exceptions as kazoo_errors
from kazoo.protocol.states import KazooState
from kazoo.security import ACL

from millstream.coordination import errors, port
from millstream.coordination.checks import check_multi, check_path
from millstream.coordination.kazoo_client import (
    CONNECT_SHARE,
    Access,
    LoopHandler,
    NotSent,
    SessionClient,
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
from millstream.coordination.watchdog import Hang, LoopWatch
from millstream.model.ids import NO_SESSION, SessionId
from millstream.observe.logs import get_logger
from millstream.runtime.clock import Clock
from millstream.runtime.fatal import end_if_fatal, guard_thread

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 5.0
"""How long `close` waits; a thread that takes longer ends by itself."""

_ERRORS: Final[dict[type, type[errors.RequestRefused]]] = {
    kazoo_errors.NoNodeError: errors.NoNode,
    kazoo_errors.NodeExistsError: errors.NodeExists,
    kazoo_errors.BadVersionError: errors.BadVersion,
    kazoo_errors.NotEmptyError: errors.NotEmpty,
    kazoo_errors.NoChildrenForEphemeralsError: errors.NoChildrenForEphemerals,
    kazoo_errors.BadArgumentsError: errors.BadArguments,
    kazoo_errors.NoAuthError: errors.NotAllowed,
}
_KINDS: Final = {
    "CREATED": WatchKind.CREATED,
    "DELETED": WatchKind.DELETED,
    "CHANGED": WatchKind.CHANGED,
    "CHILD": WatchKind.CHILDREN,
}
_HARMLESS_IN_MULTI: Final = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)

_REFUSED: Final = "the coordination service does not accept the secret"

log = get_logger("millstream.coordination.kazoo_session")


class KazooSession:
    """One session. All methods are called on the loop that created it."""

    def __init__(
        self, servers: str, clock: Clock, *, timeout_ms: int, access: Access | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self.session_id: SessionId = NO_SESSION
        self.timeout_ms = timeout_ms
        self._state = SessionState.SUSPENDED
        self._loss: str | None = None
        """Why the session is gone; set by whichever thread notices it first."""
        self._is_refused = False
        """Whether it is gone because our credentials were not accepted."""
        self._listeners: list[port.StateListener] = []
        self._changed = asyncio.Event()
        self._wants_end = threading.Event()
        self._ended = asyncio.Event()
        connect_timeout_s = timeout_ms / 1000 / CONNECT_SHARE / (servers.count(",") + 1)
        handler = LoopHandler(self._loop, clock, connect_timeout_s=connect_timeout_s)
        self._client = SessionClient(servers, handler, timeout_ms=timeout_ms, access=access)
        self._client.add_listener(self._on_kazoo_state)
        self._client.when_connected(self._on_connected)
        self._watch = LoopWatch(self._loop, clock, timeout_s=lambda: self.timeout_ms / 1000)
        work = guard_thread(self._run_thread)
        self._thread = threading.Thread(target=work, name="coordination session", daemon=True)
        self._thread.start()

    @property
    def state(self) -> SessionState:
        return SessionState.LOST if self._loss is not None else self._state

    def add_listener(self, listener: port.StateListener) -> None:
        self._listeners.append(listener)

    async def connected(self) -> None:
        while self.state is not SessionState.CONNECTED:
            if self._loss is not None:
                raise self._lost(self._loss)
            self._changed.clear()
            await self._changed.wait()

    def close_soon(self) -> None:
        """`close` without its wait."""
        self._lose("closed")
        self._wants_end.set()

    async def close(self) -> None:
        self.close_soon()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ended.wait()

    # -- requests ---------------------------------------------------------------------------

    async def create(
        self, path: str, data: bytes = b"", *, kind: NodeKind = NodeKind.PERSISTENT
    ) -> Created:
        check_path(path, kind)
        made, stat = await self._request(
            path,
            lambda: self._client.create_async(
                path,
                data,
                ephemeral=kind.is_ephemeral,
                sequence=kind.is_sequential,
                include_data=True,
            ),
        )
        return Created(made, NodeStat(*stat))

    async def exists(self, path: str, *, watch: Watcher | None = None) -> NodeStat | None:
        check_path(path)
        watcher = _kazoo_watcher(path, watch)
        stat = await self._request(path, lambda: self._client.exists_async(path, watch=watcher))
        return None if stat is None else NodeStat(*stat)

    async def get(self, path: str, *, watch: Watcher | None = None) -> NodeData:
        check_path(path)
        watcher = _kazoo_watcher(path, watch)
        data, stat = await self._request(path, lambda: self._client.get_async(path, watch=watcher))
        return NodeData(data or b"", NodeStat(*stat))

    async def children(self, path: str, *, watch: Watcher | None = None) -> NodeChildren:
        check_path(path)
        watcher = _kazoo_watcher(path, watch)
        names, stat = await self._request(
            path,
            lambda: self._client.get_children_async(path, watch=watcher, include_data=True),
        )
        return NodeChildren(sorted(names), NodeStat(*stat))

    async def set(self, path: str, data: bytes, *, version: int) -> NodeStat:
        check_path(path)
        stat = await self._request(
            path, lambda: self._client.set_async(path, data, version=version)
        )
        return NodeStat(*stat)

    async def delete(self, path: str, *, version: int) -> None:
        check_path(path)
        await self._request(path, lambda: self._client.delete_async(path, version=version))

    async def multi(self, operations: Sequence[port.Operation]) -> list[port.MultiResult]:
        check_multi(operations)
        transaction = self._client.transaction()
        for operation in operations:
            _add_operation(transaction, operation)
        results = await self._request("", transaction.commit_async)
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, _HARMLESS_IN_MULTI):
                cause = _refusal(result, operations[index].path)
                raise errors.MultiFailed(index=index, cause=cause)
        return [_multi_result(result) for result in results]

    async def sync(self, path: str) -> None:
        check_path(path)
        await self._request(path, lambda: self._client.sync_async(path))

    async def acl(self, path: str) -> list[ACL]:
        found: list[ACL] = (await self._request(path, lambda: self._client.get_acls_async(path)))[0]
        return found

    async def set_acl(self, path: str, acl: list[ACL]) -> None:
        await self._request(path, lambda: self._client.set_acls_async(path, acl))

    async def _request(self, path: str, start: Callable[[], Any]) -> Any:
        """Await the result of kazoo's asynchronous call. Its callback runs on the loop."""
        if self._loss is not None:
            raise self._lost(self._loss)
        if self._state is not SessionState.CONNECTED:
            raise errors.ConnectionLost("not connected", is_in_doubt=False)
        answer: asyncio.Future[Any] = self._loop.create_future()

        def done(result: Any) -> None:
            if answer.done():
                return  # the caller no longer waits
            if result.exception is None:
                answer.set_result(result.value)
            else:
                answer.set_exception(self._error(result.exception, path))

        start().rawlink(done)
        return await answer

    def _lost(self, reason: str) -> errors.SessionLost:
        kind = errors.AuthenticationFailed if self._is_refused else errors.SessionLost
        return kind(reason)

    def _error(self, error: Exception, path: str) -> Exception:
        if isinstance(error, kazoo_errors.AuthFailedError):
            return errors.AuthenticationFailed(_REFUSED)
        if isinstance(error, kazoo_errors.SessionExpiredError) or self._loss is not None:
            return self._lost(self._loss or "the session is gone")
        if isinstance(error, NotSent):
            return errors.ConnectionLost("not connected", is_in_doubt=False)
        if isinstance(error, kazoo_errors.ConnectionLoss | kazoo_errors.OperationTimeoutError):
            return errors.ConnectionLost()
        if isinstance(error, kazoo_errors.ZookeeperError):
            return _refusal(error, path)
        return error

    # -- states -----------------------------------------------------------------------------

    def _on_kazoo_state(self, state: str) -> None:
        """Runs in kazoo's thread, which must not be blocked."""
        if state == KazooState.CONNECTED:
            return  # the credentials are yet to be sent: `_on_connected` follows
        if state == KazooState.SUSPENDED:
            self._post(self._suspended)
        elif self._client.is_refused:
            self._is_refused = True
            self._note_loss(_REFUSED)
        else:
            self._note_loss("the session expired")

    def _on_connected(self) -> None:
        session_id = SessionId(self._client.current_session_id)
        self._post(self._connected, session_id, self._client.granted_ms)

    def _connected(self, session_id: SessionId, granted_ms: int) -> None:
        if self.session_id not in (NO_SESSION, session_id):
            self._note_loss("kazoo opened another session")
        if self._loss is None:
            self.session_id, self.timeout_ms = session_id, granted_ms
            self._change(SessionState.CONNECTED)

    def _suspended(self) -> None:
        if self._loss is None:
            self._change(SessionState.SUSPENDED)

    def _note_loss(self, reason: str) -> None:
        """Callable from any thread: the state is LOST from here on."""
        if self._loss is None:
            self._loss = reason
        self._client.abandon()
        self._wants_end.set()
        self._post(self._lose, reason)

    def _lose(self, reason: str) -> None:
        if self._loss is None:
            self._loss = reason
        if self._state is not SessionState.LOST:
            self._watch.stop()
            self._change(SessionState.LOST)

    def _change(self, state: SessionState) -> None:
        self._state = state
        self._changed.set()
        for listener in list(self._listeners):
            try:
                listener(state)
            except Exception as error:  # noqa: BLE001 - reported; the others are notified
                end_if_fatal(error)
                message = "a listener for session states failed"
                self._loop.call_exception_handler({"message": message, "exception": error})

    def _post(self, call: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(call, *arguments)

    # -- the thread and the watchdog ----------------------------------------------------------

    def _run_thread(self) -> None:
        """The session's own thread: everything that blocks in kazoo, and the watchdog."""
        self._client.start_async()
        hang: Hang | None = None
        while hang is None and not self._wants_end.wait(self._watch.interval_s):
            hang = self._watch.check()
            if hang is None and self._watch.takes_long():
                since_s = self._clock.monotonic_s() - self._watch.silent_s
                self._post(self._report_silence, since_s, self._watch.doing())
        if hang is not None:
            self._loss = self._loss or "the event loop hangs"
        self._client.end(timeout_s=CLOSE_TIMEOUT_S)
        if hang is not None:
            # Not before the session is closed: the loop may hang with the logs' lock.
            calls = self._watch.doing()
            log.error("event loop hangs; closed the session", how=hang.value, calls=calls)
        if self._loss is not None:
            self._post(self._lose, self._loss)
        self._post(self._ended.set)

    def _report_silence(self, since_s: float, calls: str) -> None:
        silent_s = round(self._clock.monotonic_s() - since_s, 1)
        log.warning("event loop did not respond", silent_s=silent_s, calls=calls)


def _kazoo_watcher(path: str, watch: Watcher | None) -> Callable[[Any], None] | None:
    return None if watch is None else partial(_notify, path, watch)


def _notify(path: str, watch: Watcher, event: Any) -> None:
    watch(WatchEvent(_KINDS.get(event.type, WatchKind.DROPPED), path))


def _add_operation(transaction: Any, operation: port.Operation) -> None:
    match operation:
        case port.Create(path=path, data=data, kind=kind):
            transaction.create(path, data, ephemeral=kind.is_ephemeral, sequence=kind.is_sequential)
        case port.Set(path=path, data=data, version=version):
            transaction.set_data(path, data, version)
        case port.Delete(path=path, version=version):
            transaction.delete(path, version)
        case port.Check(path=path, version=version):
            transaction.check(path, version)


def _multi_result(result: Any) -> port.MultiResult:
    if isinstance(result, str):
        return result
    return NodeStat(*result) if isinstance(result, tuple) else None


def _refusal(error: Exception, path: str) -> errors.RequestRefused:
    kind = _ERRORS.get(type(error))
    return kind(path) if kind is not None else errors.Unexpected(path, type(error).__name__)
