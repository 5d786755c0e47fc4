"""Processes of a simulated world that can die at any moment, and what their connections carried.

Several processes share one loop. Which of them a callback belongs to is a context variable: timers
and tasks inherit it from whoever made them, and the network hands bytes to a protocol in the
context of its owner. So a process that is killed takes its timers and tasks along, as a real one
does, and one that stopped can be asked what it left behind (I-42).
"""

import asyncio
import ssl
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar, cast

from millstream.runtime.network import Network
from millstream.testing.sim_network import SimHost, SimListener, SimNetwork
from millstream.testing.sim_transport import Pipe, SimTransport
from millstream.testing.virtual_loop import VirtualLoop

P = TypeVar("P", bound=asyncio.BaseProtocol)
R = TypeVar("R")

_CURRENT: ContextVar["SimProcess | None"] = ContextVar("simulated process", default=None)

_WORLD: tuple[type, ...] = (Pipe, SimTransport, SimNetwork)
"""Their callbacks belong to the network, whoever's bytes made them: packets outlive a process."""


class Tap:
    """Sees the bytes of one connection; the base class looks away."""

    def received(self, data: bytes) -> None:
        """Bytes arrived, and the process has not seen them yet."""

    def sent(self, data: bytes) -> None:
        """The process wrote bytes."""

    def ended(self) -> None:
        """The connection is gone."""


class SimProcess:
    """One process; `network` is its seam."""

    def __init__(
        self, loop: VirtualLoop, name: str, host: SimHost, tap: Callable[[], Tap] = Tap
    ) -> None:
        self._loop = loop
        self.name = name
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._context = copy_context()
        self._context.run(_CURRENT.set, self)
        self.network: Network = _ProcessNetwork(self, host, tap)

    def run(self, call: Callable[..., R], *arguments: Any) -> R:
        """Call it as this process."""
        if _CURRENT.get() is self:
            return call(*arguments)
        return self._context.copy().run(call, *arguments)

    def spawn(self, work: Any, name: str) -> asyncio.Task[Any]:
        """A task of this process."""
        return self.run(lambda: self._loop.create_task(work, name=f"{self.name}: {name}"))

    # -- the end ---------------------------------------------------------------------------

    def kill(self) -> None:
        """Nothing of it runs again; its host must be killed in the network, too.

        Tasks are cancelled and come to an end with the dead seams they have; how is nobody's
        concern any more.
        """
        for handle in self._handles():
            handle.cancel()
        for task in self._own_tasks():
            task.add_done_callback(_look_away)
            task.cancel()

    def leftovers(self) -> list[str]:
        """Tasks and timers that are still there."""
        tasks = [f"task {task.get_name()}" for task in self._own_tasks()]
        mine = [one for one in self._handles() if not _is_step(one)]
        return tasks + [f"timer {_callback_of(one)}" for one in mine]

    def _own_tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task, owner in owners(self._loop).items() if owner is self]

    def _handles(self) -> list[asyncio.Handle]:
        scheduled: list[asyncio.Handle] = self._loop._scheduled  # type: ignore[attr-defined] # noqa: SLF001
        ready: list[asyncio.Handle] = self._loop._ready  # type: ignore[attr-defined] # noqa: SLF001
        return [one for one in (*scheduled, *ready) if self._owns(one)]

    def _owns(self, handle: asyncio.Handle) -> bool:
        if handle.cancelled():
            return False
        context = handle._context  # type: ignore[attr-defined] # noqa: SLF001
        if context.get(_CURRENT) is not self:
            return False
        return not isinstance(getattr(_callback_of(handle), "__self__", None), _WORLD)


def owners(loop: VirtualLoop) -> dict[asyncio.Task[Any], SimProcess | None]:
    """Every unfinished task with the process that started it."""
    found = {}
    for task in loop.unfinished_tasks():
        found[task] = _OWNERS.get(task)
    return found
