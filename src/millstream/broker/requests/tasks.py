"""Requests that wait for something run as tasks, all of which end with the broker."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millstream.model.errors import without_frames
from millstream.model.invariant import InvariantViolated
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger

log = get_logger("millstream.broker.requests.tasks")


class TaskScope:
    """A group of tasks that do not end each other: a failed request affects only its client."""

    def __init__(self, client_log: ClientLog, on_spawn: Callable[[], None] | None = None) -> None:
        """`on_spawn` is called for every task: its time is not that of the one who spawns it."""
        self._on_spawn = on_spawn
        self._client_log = client_log
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run it until it ends or the scope is closed."""
        if self._is_closed:
            work.close()
            return
        if self._on_spawn is not None:
            self._on_spawn()
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def __len__(self) -> int:
        return len(self._tasks)

    async def close(self, *, timeout_s: float) -> None:
        """Wait for the tasks up to the timeout, then cancel them."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, InvariantViolated):
            name = task.get_name()
            self._client_log.error(log, "task failed", client="", task=name, error=error)
            without_frames(error)  # the task has it, and its frames have the request
