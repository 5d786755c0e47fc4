"""The end of the process when an invariant is broken.

asyncio logs an exception of a callback or a forgotten task and goes on; a thread just ends. For
our own bugs that is the worst reaction, as whatever comes next may be written to disk. Everything
outermost (the loop, its tasks, every thread) is therefore guarded from here.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn, ParamSpec, TypeVar

from millstream.model.invariant import InvariantViolated

EXIT_INVARIANT_VIOLATED: Final = 70
"""EX_SOFTWARE of sysexits.h: an internal error, not a failure of the environment."""

P = ParamSpec("P")
T = TypeVar("T")

OnViolation = Callable[[BaseException], None]


def end_process(error: BaseException) -> NoReturn:
    """Print what happened and exit without any cleanup: cleanup is code that may write."""
    lines = "".join(traceback.format_exception(error))
    sys.stderr.write(f"{lines}invariant violated: the process ends\n")
    sys.stderr.flush()
    os._exit(EXIT_INVARIANT_VIOLATED)


def is_violation(error: BaseException | None) -> bool:
    """Also inside a group, as a TaskGroup wraps what its tasks raise."""
    if isinstance(error, BaseExceptionGroup):
        return any(is_violation(inner) for inner in error.exceptions)
    return isinstance(error, InvariantViolated)


def install(loop: asyncio.AbstractEventLoop, *, on_violation: OnViolation = end_process) -> None:
    """Guard the loop's callbacks, protocols and tasks; call it before the first task."""

    def handle(failed_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and is_violation(error):
            on_violation(error)
        else:
            failed_loop.default_exception_handler(context)

    def finished(task: asyncio.Future[Any]) -> None:
        # Not task.exception(): that marks the error as seen, and asyncio would no longer report
        # an ordinary one that is never awaited.
        error = task._exception  # noqa: SLF001
        if error is not None and is_violation(error):
            on_violation(error)

    def make_task(
        task_loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], **options: Any
    ) -> asyncio.Task[T]:
        task = asyncio.Task(work, loop=task_loop, **options)
        # The first callback of a task runs before any code that awaits the task goes on.
        task.add_done_callback(finished)
        return task

    loop.set_exception_handler(handle)
    loop.set_task_factory(make_task)  # type: ignore[arg-type]


def guard_thread(work: Callable[P, T]) -> Callable[P, T]:
    """The outermost function of a thread, or of the main program, made fatal in the same way."""

    def guarded(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            return work(*arguments, **options)
        except BaseException as error:
            if is_violation(error):
                end_process(error)
            raise

    return guarded
