"""Processes of a simulated world that can die at any time, and what their connections carried.

Several processes share one loop. Which of them a callback belongs to is a context variable: timers
and tasks inherit it from the code that created them, and the network hands bytes to a protocol in
the context of its owner. So a process that is killed takes its timers and tasks along, as a real
one does, and what a stopped one left behind can be listed (I-42).
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar, cast

from millstream.runtime.network import Network
from millstream.testing.sim.network import SimHost, SimListener, SimNetwork
from millstream.testing.sim.transport import Pipe, SimTransport
from millstream.testing.sim.virtual_loop import VirtualLoop

P = TypeVar("P", bound=asyncio.BaseProtocol)
R = TypeVar("R")

_CURRENT: ContextVar["SimProcess | None"] = ContextVar("simulated process", default=None)

_WORLD: tuple[type, ...] = (Pipe, SimTransport, SimNetwork)
"""Their callbacks belong to the network, not to the sender: packets outlive a process."""


class Tap:
    """Observes the bytes of one connection; the base class ignores them."""

    def received(self, data: bytes) -> None:
        """Bytes arrived, and the process has not seen them yet."""

    def sent(self, data: bytes) -> None:
        """The process wrote bytes."""

    def ended(self) -> None:
        """The connection is gone."""


class SimProcess:
    """One process; `network` is its seam."""

    def __init__(
        self,
        loop: VirtualLoop,
        name: str,
        host: SimHost,
        tap: Callable[[], Tap] = Tap,
        *,
        write_buffer_bytes: int | None = None,
    ) -> None:
        """With a small write buffer a slow peer causes back-pressure early."""
        self._loop = loop
        self.name = name
        self.write_buffer_bytes = write_buffer_bytes
        self._context = copy_context()
        self._context.run(_CURRENT.set, self)
        self.network: Network = _ProcessNetwork(self, host, tap)
        self.is_dead = False

    def run(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call it as this process."""
        if _CURRENT.get() is self:
            return call(*arguments)
        return self._context.copy().run(call, *arguments)

    def spawn(self, work: Coroutine[Any, Any, R], name: str) -> asyncio.Task[R]:
        """A task of this process."""
        return self.run(lambda: self._loop.create_task(work, name=f"{self.name}: {name}"))

    # -- the end ---------------------------------------------------------------------------

    def kill(self) -> None:
        """Nothing of it runs again; its host must be killed in the network, too.

        Tasks are cancelled and end with the dead seams they have; their outcome is ignored.
        """
        self.is_dead = True
        for handle in self._handles():
            if not _is_step(handle):
                handle.cancel()
        for task in self._tasks():
            task.add_done_callback(_ignore_outcome)
            task.cancel()

    def leftovers(self) -> list[str]:
        """Tasks and timers that are still there."""
        tasks = [f"task {task.get_name()}" for task in self._tasks()]
        timers = [one for one in self._handles() if not _is_step(one)]
        return tasks + [f"timer {_callback_of(one)}" for one in timers]

    def _tasks(self) -> list[asyncio.Task[Any]]:
        unfinished = self._loop.unfinished_tasks()
        return [task for task, context in unfinished if context.get(_CURRENT) is self]

    def _handles(self) -> list[asyncio.Handle]:
        loop: Any = self._loop
        return [one for one in (*loop._scheduled, *loop._ready) if self.owns(one)]  # noqa: SLF001

    def owns(self, handle: Any) -> bool:
        """Whether the callback is one of this process, not of the world around it."""
        if handle.cancelled() or handle._context.get(_CURRENT) is not self:  # noqa: SLF001
            return False
        return not isinstance(getattr(_callback_of(handle), "__self__", None), _WORLD)


def _callback_of(handle: Any) -> Any:
    callback = handle._callback  # noqa: SLF001
    return getattr(callback, "func", callback)


def _is_step(handle: asyncio.Handle) -> bool:
    """Whether it resumes a task; a task whose step is removed could never end."""
    callback = _callback_of(handle)
    is_method = isinstance(getattr(callback, "__self__", None), asyncio.Task)
    return is_method or type(callback).__name__.startswith("Task")


def _ignore_outcome(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


class _ProcessNetwork:
    """The network seam of a process: every protocol is called in the context of its process."""

    def __init__(self, process: SimProcess, host: SimHost, tap: Callable[[], Tap]) -> None:
        self._process = process
        self._host = host
        self._tap = tap

    async def listen(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        *,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
    ) -> SimListener:
        def make() -> asyncio.BaseProtocol:
            return _ProcessProtocol(self._process, self._process.run(make_protocol), self._tap())

        return await self._host.listen(make, host=host, port=port, tls=tls)

    async def connect(
        self,
        make_protocol: Callable[[], P],
        *,
        host: str,
        port: int,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
    ) -> tuple[SimTransport, P]:
        transport, protocol = await self._host.connect(
            # The tap is for connections to this process, not for those that it opens.
            lambda: _ProcessProtocol(self._process, make_protocol(), Tap()),
            host=host,
            port=port,
            timeout_s=timeout_s,
            tls=tls,
        )
        return transport, cast("P", protocol.inner)


class _ProcessProtocol(asyncio.BufferedProtocol):
    """Between a transport and a protocol: the right process, and a tap on the bytes."""

    def __init__(self, process: SimProcess, inner: asyncio.BaseProtocol, tap: Tap) -> None:
        if not isinstance(inner, asyncio.BufferedProtocol):
            raise TypeError(f"only buffered protocols are simulated as processes: {inner!r}")
        self._process = process
        self.inner = inner
        self._tap = tap
        self._buffer = memoryview(b"")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        tapped = _TappedTransport(cast("asyncio.Transport", transport), self._tap)
        if self._process.write_buffer_bytes is not None:
            cast("asyncio.Transport", transport).set_write_buffer_limits(
                high=self._process.write_buffer_bytes
            )
        self._process.run(self.inner.connection_made, tapped)

    def get_buffer(self, sizehint: int) -> memoryview:
        self._buffer = memoryview(self.inner.get_buffer(sizehint)).cast("B")
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._process.is_dead:
            return  # what waited for it while it was paused is dropped
        self._tap.received(bytes(self._buffer[:nbytes]))
        self._process.run(self.inner.buffer_updated, nbytes)

    def eof_received(self) -> bool | None:
        return self._process.run(self.inner.eof_received)

    def pause_writing(self) -> None:
        self._process.run(self.inner.pause_writing)

    def resume_writing(self) -> None:
        self._process.run(self.inner.resume_writing)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tap.ended()
        self._process.run(self.inner.connection_lost, exc)


class _TappedTransport(asyncio.Transport):
    """The calls that protocols here make, with what is written shown to a tap."""

    def __init__(self, inner: asyncio.Transport, tap: Tap) -> None:
        super().__init__()
        self._inner = inner
        self._tap = tap

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._inner.is_closing():
            self._tap.sent(bytes(data))
        self._inner.write(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def is_closing(self) -> bool:
        return self._inner.is_closing()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()
