"""Coroutines of which the first to end ends the others; none is left running."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def run_until_first(*works: Coroutine[Any, Any, Any]) -> int:
    """Run all until one of them ends: its number. The others are cancelled and waited for.

    Raises what any of them raised, the first in the order given; a bug of ours before all.
    """
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [number for number, task in enumerate(tasks) if task.done()]
        for task in tasks:
            task.cancel()
        # One that takes long to be cancelled has a reason for it, such as a write under way.
        await asyncio.gather(*tasks, return_exceptions=True)
        over = [task for task in tasks if task.done() and not task.cancelled()]
        errors = [task.exception() for task in over]
        violations = [one for one in errors if one is not None and not isinstance(one, Exception)]
        if violations:
            raise violations[0]
    for error in errors:
        if error is not None:
            raise error
    return ended[0]


async def until(stop: asyncio.Event, work: Coroutine[Any, Any, Any]) -> bool:
    """Do the work, or cancel it when `stop` is set; whether it was finished."""
    return await run_until_first(work, stop.wait()) == 0


class Wake(asyncio.Event):
    """An event that can be passed as a watch: any notification sets it."""

    def __call__(self, _event: object) -> None:
        self.set()
