"""A broken invariant ends the process with 70, wherever it is raised."""

import subprocess
import sys
import textwrap

import pytest

from millstream.model.invariant import InvariantViolated
from millstream.runtime.fatal import (
    EXIT_INVARIANT_VIOLATED,
    EXIT_OUT_OF_MEMORY,
    is_fatal,
    is_violation,
)

PROLOGUE = """
import asyncio, threading
from millstream.model.invariant import invariant
from millstream.runtime import fatal
from millstream.runtime.background import ThreadBackground

def broken(*_):
    invariant(False, "I-99 planted", where="here")

async def broken_task():
    broken()

class Server(asyncio.Protocol):
    data_received = broken
"""

PLACES = {
    "loop callback": """
        async def main():
            fatal.install(asyncio.get_running_loop())
            asyncio.get_running_loop().call_soon(broken)
            await asyncio.sleep(20)
        asyncio.run(main())
    """,
    "task that nobody awaits": """
        async def main():
            fatal.install(asyncio.get_running_loop())
            task = asyncio.create_task(broken_task())
            await asyncio.sleep(20)
        asyncio.run(main())
    """,
    "task whose owner swallows everything": """
        async def main():
            fatal.install(asyncio.get_running_loop())
            try:
                await asyncio.create_task(broken_task())
            except BaseException:
                print("survived")
        asyncio.run(main())
    """,
    "task group": """
        async def main():
            fatal.install(asyncio.get_running_loop())
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(broken_task())
            except BaseException:
                print("survived")
        asyncio.run(main())
    """,
    "protocol callback": """
        async def main():
            loop = asyncio.get_running_loop()
            fatal.install(loop)
            server = await loop.create_server(Server, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
            transport.write(b"x")
            await asyncio.sleep(20)
        asyncio.run(main())
    """,
    "thread": """
        thread = threading.Thread(target=fatal.guard_thread(broken))
        thread.start()
        thread.join()
        print("survived")
    """,
    "main program": """
        fatal.guard_thread(lambda: asyncio.run(broken_task()))()
    """,
    "background work": """
        async def main():
            background = ThreadBackground(asyncio.get_running_loop())
            background.submit(broken, lambda outcome: print("survived"), name="broken")
            await asyncio.sleep(20)
        asyncio.run(main())
    """,
    "answer to background work": """
        async def main():
            fatal.install(asyncio.get_running_loop())
            background = ThreadBackground(asyncio.get_running_loop())
            background.submit(lambda: 1, broken, name="fine")
            await asyncio.sleep(20)
        asyncio.run(main())
    """,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_broken_invariant_ends_the_process(place: str) -> None:
    program = PROLOGUE + textwrap.dedent(PLACES[place])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == EXIT_INVARIANT_VIOLATED, done.stderr
    assert "I-99 planted" in done.stderr
    assert "survived" not in done.stdout


@pytest.mark.parametrize("place", PLACES)
def test_no_memory_ends_the_process(place: str) -> None:
    """With one line, wherever it was noticed: nothing that comes next would work."""
    prologue = PROLOGUE.replace(
        'invariant(False, "I-99 planted", where="here")', "raise MemoryError"
    )
    program = prologue + textwrap.dedent(PLACES[place])
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == EXIT_OUT_OF_MEMORY, done.stderr
    assert done.stderr == "out of memory; the process ends\n"
    assert "survived" not in done.stdout


def test_an_ordinary_error_of_a_task_is_still_reported_by_asyncio() -> None:
    program = PROLOGUE + textwrap.dedent("""
        async def fails():
            raise KeyError("ordinary")
        async def main():
            fatal.install(asyncio.get_running_loop())
            asyncio.create_task(fails())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        asyncio.run(main())
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "never retrieved" in done.stderr


def test_a_violation_is_found_inside_groups() -> None:
    inner = BaseExceptionGroup("inner", [ValueError(), InvariantViolated("x")])
    assert is_violation(BaseExceptionGroup("outer", [inner]))
    assert not is_violation(ExceptionGroup("outer", [ValueError()]))
    assert not is_violation(None)
    assert is_fatal(ExceptionGroup("outer", [MemoryError()]))
    assert not is_violation(MemoryError())
    assert not is_fatal(ValueError())
