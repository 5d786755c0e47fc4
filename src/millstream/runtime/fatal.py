"""The end of the process when an invariant is broken, or when there is no memory left.

asyncio logs an exception of a callback or a forgotten task and goes on; a thread just ends. For
our own bugs that is the worst reaction, as whatever comes next may be written to disk. Everything
outermost (the loop, its tasks, every thread) is therefore guarded from here.

A process without memory is the same: whatever it tries next fails, too, and each failure is a line
in the log. Code that catches every error and goes on calls `end_if_fatal` with it.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar

from millstream.model.invariant import InvariantViolated

if TYPE_CHECKING:
    import asyncio

EXIT_INVARIANT_VIOLATED: Final = 70
"""EX_SOFTWARE of sysexits.h: an internal error, not a failure of the environment."""

EXIT_OUT_OF_MEMORY: Final = 71
"""EX_OSERR of sysexits.h: the system did not give what the process needs."""

_RESERVE_BYTES: Final = 1024 * 1024
"""Freed before the last line is written: enough to format and write it."""

_reserve = [bytearray(_RESERVE_BYTES)]

P = ParamSpec("P")
T = TypeVar("T")

OnViolation = Callable[[BaseException], None]


def end_process(error: BaseException) -> NoReturn:
    """Print what happened and exit without any cleanup: cleanup is code that may write."""
    if not is_violation(error):
        _end_out_of_memory()
    lines = "".join(traceback.format_exception(error))
    sys.stderr.write(f"{lines}invariant violated: the process ends\n")
    sys.stderr.flush()
    os._exit(EXIT_INVARIANT_VIOLATED)


def _end_out_of_memory() -> NoReturn:
    if not _reserve:  # even the last line could not be written
        os._exit(EXIT_OUT_OF_MEMORY)
    _reserve.clear()
    try:
        logging.getLogger(__name__).critical("out of memory; the process ends")
        for handler in logging.getLogger().handlers:
            handler.flush()
    finally:
        os._exit(EXIT_OUT_OF_MEMORY)


def is_violation(error: BaseException | None) -> bool:
    """Also inside a group, as a TaskGroup wraps what its tasks raise."""
    return _is(error, InvariantViolated)


def is_fatal(error: BaseException | None) -> bool:
    """A broken invariant, or no memory; also inside a group."""
    return _is(error, (InvariantViolated, MemoryError))


def _is(
    error: BaseException | None, kinds: type[BaseException] | tuple[type[BaseException], ...]
) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_is(inner, kinds) for inner in error.exceptions)
    return isinstance(error, kinds)


def end_if_fatal(error: BaseException) -> None:
    """For code that catches every error, so that the others are served: none is, without memory."""
    if is_fatal(error):
        end_process(error)


def install(loop: "asyncio.AbstractEventLoop", *, on_violation: OnViolation = end_process) -> None:
    """Guard the loop's callbacks, protocols and tasks; call it before the first task."""
    import asyncio  # here: Spark workers log, too, and need no event loop for it

    def handle(failed_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and is_fatal(error):
            on_violation(error)
        else:
            failed_loop.default_exception_handler(context)

    def finished(task: asyncio.Future[Any]) -> None:
        # Not task.exception(): that marks the error as seen, and asyncio would no longer report
        # an ordinary one that is never awaited.
        error = task._exception  # noqa: SLF001
        if error is not None and is_fatal(error):
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
            end_if_fatal(error)
            raise

    return guarded
