"""Background work: results come back on the loop, limits hold, closing waits and reports."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from millstream.model.invariant import InvariantViolated
from millstream.runtime.background import (
    BackgroundFullError,
    Outcome,
    ThreadBackground,
    run_in_background,
)


def test_work_runs_in_another_thread_and_answers_in_the_loops() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        background = ThreadBackground(loop)
        answered: asyncio.Future[tuple[int, Outcome[int]]] = loop.create_future()
        background.submit(
            threading.get_ident,
            lambda outcome: answered.set_result((threading.get_ident(), outcome)),
            name="ident",
        )
        loop_thread, outcome = await answered
        assert loop_thread == threading.get_ident() != outcome.result()
        assert await background.close(timeout_s=10) == []

    asyncio.run(main())


class _Decoded(Exception):
    """What work returns, or raises."""


def _raises() -> _Decoded:
    raise _Decoded


@pytest.mark.parametrize("work", [_Decoded, _raises])
def test_a_thread_that_waits_has_neither_its_last_work_nor_the_result(
    work: Callable[[], _Decoded],
) -> None:
    """I-37: a large request, decoded in a thread, is not kept until the thread has other work, nor,
    where that failed, until the next collection of cycles.
    """

    async def main() -> None:
        loop = asyncio.get_running_loop()
        background, is_gone = ThreadBackground(loop, workers=1), asyncio.Event()

        async def run() -> None:
            try:
                found = await run_in_background(background, work, name="decode")
            except _Decoded as error:
                found = error
            weakref.finalize(found, loop.call_soon_threadsafe, is_gone.set)
            del found

        await run()
        async with asyncio.timeout(10):
            await is_gone.wait()
        assert await background.close(timeout_s=10) == []

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()


def test_an_error_of_the_work_reaches_whoever_waits() -> None:
    def fails() -> int:
        raise OSError(5, "planted")

    async def main() -> None:
        background = ThreadBackground(asyncio.get_running_loop())
        with pytest.raises(OSError, match="planted"):
            await run_in_background(background, fails, name="fails")
        assert await run_in_background(background, lambda: 7, name="seven") == 7
        assert await background.close(timeout_s=10) == []

    asyncio.run(main())


def test_threads_and_queue_are_bounded_and_threads_carry_the_works_name() -> None:
    async def main() -> None:
        background = ThreadBackground(asyncio.get_running_loop(), workers=2, queued_max=5)
        gate = threading.Event()
        names: list[str] = []

        def waits() -> None:
            names.append(threading.current_thread().name)
            assert gate.wait(30)

        for number in range(5):
            background.submit(waits, lambda outcome: outcome.result(), name=f"job {number}")
        with pytest.raises(BackgroundFullError):
            background.submit(waits, lambda outcome: outcome.result(), name="one more")
        running = [thread for thread in threading.enumerate() if "background" in thread.name]
        assert len(running) == 2
        gate.set()
        assert await background.close(timeout_s=30) == []
        assert sorted(name.partition(": ")[2] for name in names) == [
            f"job {number}" for number in range(5)
        ]

    asyncio.run(main())


def test_close_waits_only_so_long_and_names_what_is_left() -> None:
    gate = threading.Event()

    async def main() -> None:
        background = ThreadBackground(asyncio.get_running_loop(), workers=1)
        background.submit(lambda: gate.wait(30), lambda _: None, name="stuck sync")
        background.submit(lambda: None, lambda _: None, name="behind it")
        assert await background.close(timeout_s=0.01) == ["stuck sync", "behind it"]
        with pytest.raises(InvariantViolated):
            background.submit(lambda: None, lambda _: None, name="too late")

    asyncio.run(main())
    gate.set()
    for thread in threading.enumerate():
        if thread.name.startswith("background"):
            thread.join(10)
            assert not thread.is_alive()


def test_a_cancelled_waiter_does_not_disturb_the_work() -> None:
    async def main() -> None:
        background = ThreadBackground(asyncio.get_running_loop())
        gate = threading.Event()
        waiter = asyncio.create_task(
            run_in_background(background, lambda: gate.wait(30), name="slow")
        )
        await asyncio.sleep(0)
        waiter.cancel()
        gate.set()
        assert await background.close(timeout_s=30) == []

    asyncio.run(main())
