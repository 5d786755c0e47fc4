"""An event loop whose time is a number: it jumps to the next timer when nothing is ready.

No sockets, no threads and no waiting, so a simulated hour takes as long as its callbacks. Ready
callbacks run in the order asyncio promises; what is random in a simulation is decided at the
seams (delays, faults), never by shuffling callbacks.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, Final, NoReturn, TypeVar

from millstream.runtime import fatal
from millstream.testing.sim.trace import Trace

T = TypeVar("T")

TIME_LIMIT_S: Final = 24 * 3600.0
"""Virtual time after which a run is assumed to never end."""


class DeadlockError(RuntimeError):
    """Nothing is ready, no timer is set, and the main coroutine has not finished."""


class _NoSelector:
    """Replaces asyncio's selector: waiting is a jump in time."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[object]:
        if self._loop.before_each_round is not None:
            self._loop.before_each_round()
        if timeout is None:
            raise DeadlockError(self._loop.describe_tasks())
        if timeout > 0:
            self._loop.jump_to_next_timer()
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """A deterministic loop; see `run`.

    An unhandled exception ends the run and is raised from it, where asyncio would log.
    """

    def __init__(self, trace: Trace | None = None, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        super().__init__()
        self._now_s = 0.0
        self._time_limit_s = time_limit_s
        self._selector = _NoSelector(self)
        self._failure: BaseException | None = None
        self._unfinished: dict[asyncio.Task[Any], Context] = {}
        self.before_each_round: Callable[[], None] | None = None
        """A hook for what pauses single processes: it may remove ready callbacks."""
        self.trace = trace if trace is not None else Trace()
        fatal.install(self, on_violation=self.fail)
        self.set_exception_handler(VirtualLoop._unhandled)

    def time(self) -> float:
        return self._now_s

    def jump_to_next_timer(self) -> None:
        """Called when nothing is ready; asyncio has removed cancelled timers from the front."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        self._now_s = max(self._now_s, timers[0].when())
        self.trace.note("time", self._now_s)
        if self._now_s > self._time_limit_s:
            tasks = self.describe_tasks()
            raise DeadlockError(f"still running after {self._time_limit_s} virtual s: {tasks}")

    def fail(self, error: BaseException) -> None:
        """End the run with this error."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def describe_tasks(self) -> str:
        names = sorted(task.get_name() for task in self._unfinished)
        return f"unfinished tasks: {', '.join(names) or 'none'}"

    def unfinished_tasks(self) -> list[tuple[asyncio.Task[Any], Context]]:
        """Every task that has not ended, oldest first, with the context it was made in."""
        return list(self._unfinished.items())

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task = super().create_task(coro, name=name, context=context)
        self._unfinished[task] = context if context is not None else copy_context()
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.pop(task, None)

    def run_to_end(self, main: Coroutine[Any, Any, T]) -> T:
        """Run `main`, then cancel what it left, oldest first; raises the first failure."""
        try:
            result = self.run_until_complete(self.create_task(main, name="main"))
        except BaseException as error:
            if self._failure is not None and error is not self._failure:
                raise self._failure from error
            raise
        finally:
            self._cancel_the_rest()
        if self._failure is not None:
            raise self._failure
        return result

    def _cancel_the_rest(self) -> None:
        # asyncio.all_tasks is a set: its order is that of addresses and differs between runs.
        left = list(self._unfinished)
        for task in left:
            task.cancel()
        if left:
            self.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    @staticmethod
    def _unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, BaseException):
            error = RuntimeError(str(context.get("message")))
        if isinstance(loop, VirtualLoop):
            loop.fail(error)

    # -- What the base class requires of a loop, and what would break determinism

    def _process_events(self, event_list: list[object]) -> None:
        """No sockets, no events."""

    def _write_to_self(self) -> None:
        """Wakes a loop that waits in another thread; this one never waits."""
        running_in = self._thread_id  # type: ignore[attr-defined]
        if running_in is not None and running_in != threading.get_ident():
            raise RuntimeError("another thread called into the virtual loop")

    def run_in_executor(self, *_arguments: Any) -> NoReturn:  # type: ignore[override]
        raise RuntimeError(
            "threads make a simulated run irreproducible: use the Background seam (SimBackground)"
        )

    async def create_connection(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("the virtual loop has no sockets: use the Network seam (SimNetwork)")

    async def create_server(self, *_arguments: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("the virtual loop has no sockets: use the Network seam (SimNetwork)")


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    trace: Trace | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> T:
    """Run a coroutine function on a loop of its own in virtual time."""
    loop = VirtualLoop(trace, time_limit_s=time_limit_s)
    try:
        return loop.run_to_end(main())
    finally:
        loop.close()
