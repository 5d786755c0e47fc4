"""Pausing and resuming a simulated process, as SIGSTOP and SIGCONT do.

Nothing of it runs while it is paused: its timers become due and wait, bytes for it wait in its
kernel's buffers. When it resumes everything that became due happens at once, and it does not know
that time has passed. That is what makes a zombie.
"""

import asyncio
import heapq
from typing import Any

from millstream.testing.sim.network import SimNetwork
from millstream.testing.sim.virtual_loop import VirtualLoop
from millstream.testing.simulation.broker.process import SimProcess


class Pauses:
    """The paused processes of a world."""

    def __init__(self, loop: VirtualLoop, network: SimNetwork) -> None:
        self._loop: Any = loop
        self._network = network
        self._paused: dict[str, tuple[SimProcess, list[asyncio.Handle]]] = {}
        """By host: its process, and what it would do next."""
        loop.before_each_round = self._collect

    def is_paused(self, host: str) -> bool:
        return host in self._paused

    def pause(self, host: str, process: SimProcess) -> None:
        """Stop the process on the host; packets to it wait."""
        if host in self._paused:
            return
        self._paused[host] = (process, [])
        self._network.paused_hosts.add(host)
        self._network.trace.note("pause", host)
        timers = self._loop._scheduled  # noqa: SLF001
        kept = self._paused[host][1]
        mine = sorted(one for one in timers if process.owns(one))
        chosen = {id(one) for one in mine}
        kept += mine
        timers[:] = [one for one in timers if id(one) not in chosen]
        heapq.heapify(timers)
        self._collect()

    def resume(self, host: str) -> None:
        """Resume it: first what was ready, then what became due meanwhile."""
        if host not in self._paused:
            return
        _, kept = self._paused.pop(host)
        self._network.paused_hosts.discard(host)
        self._network.trace.note("resume", host)
        for handle in kept:
            if isinstance(handle, asyncio.TimerHandle):
                heapq.heappush(self._loop._scheduled, handle)  # noqa: SLF001
            else:
                self._loop._ready.append(handle)  # noqa: SLF001
        self._network.wake()

    def resume_all(self) -> None:
        for host in list(self._paused):
            self.resume(host)

    def _collect(self) -> None:
        """Take what others scheduled for a paused process; the queue keeps its length."""
        if not self._paused:
            return
        ready = self._loop._ready  # noqa: SLF001
        for process, kept in self._paused.values():
            for index, handle in enumerate(ready):
                if process.owns(handle):
                    kept.append(handle)
                    ready[index] = _cancelled_handle(self._loop)


def _cancelled_handle(loop: asyncio.AbstractEventLoop) -> asyncio.Handle:
    handle = asyncio.Handle(lambda: None, (), loop)
    handle.cancel()
    return handle
