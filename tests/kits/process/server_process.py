"""A process that prints `ready: ...`, started for a test and stopped after it."""

import signal
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class ServerProcess(NamedTuple):
    """The process and the address from its ready line."""

    process: "subprocess.Popen[str]"
    address: str


@contextmanager
def server_process(
    module: Sequence[str],
    directory: Path,
    *,
    good_ends: Collection[int] = (),
    inside: Sequence[str] = (),
    is_file: bool = False,
) -> Iterator[ServerProcess]:
    """Its log lines are in `directory/stderr`; one that ended by itself fails the test.

    `inside`: a command that runs it, with its own process id, in a network namespace. `is_file`: a
    program's file instead of a module.
    """
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "stderr"
    with log.open("a") as errors:
        process = subprocess.Popen(
            [*inside, sys.executable, *([] if is_file else ["-m"]), *module],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: "), log.read_text()
        yield ServerProcess(process, line.removeprefix("ready: ").strip())
        code = process.poll()
        assert code in (None, -signal.SIGKILL, *good_ends), log.read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        process.stdout.close()
