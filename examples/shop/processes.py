"""The processes around the pipeline: brokers, shop and Spark, started and stopped.

Brokers and shop are in sessions of their own, so that Ctrl-C reaches the demo alone, which then
stops them in the right order; and they end when the demo is killed.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from pyspark.sql import SparkSession

from examples.shop.events import Day
from examples.shop.traffic import OrdersProgress
from millstream.testing.peers.runtimes import MissingRuntimeError, find_runtime
from millstream.testing.spark.sessions import local_session

ROOT: Final = Path(__file__).parents[2]
JAVA_VERSION_MIN: Final = 17
BROKERS: Final = 3
"""Each has a replica of everything, so one of them may die."""
STOP_TIMEOUT_S: Final = 40.0
"""A broker takes its time to close many files, and is killed after 30 s by `millstream up`."""


class DemoFailed(Exception):
    """Something that the demo needs did not work; the text is for the user."""


def require_java(say: Callable[[str], None]) -> None:
    """Spark needs one: found, or installed as root on Debian. Raises DemoFailed."""
    home = os.environ.get("JAVA_HOME")
    if not home and shutil.which("java") is None:
        say("no Java here; installing it, if that is allowed ...")
    try:
        java = Path(home) / "bin" / "java" if home else find_runtime("java")
        # Its first line is like: openjdk version "17.0.12" 2024-07-16
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except (MissingRuntimeError, OSError) as error:
        raise DemoFailed(f"Spark needs Java {JAVA_VERSION_MIN} or newer: {error}") from None
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or int(found[1]) < JAVA_VERSION_MIN:
        said = done.stderr.strip().partition("\n")[0]
        raise DemoFailed(f"Spark needs Java {JAVA_VERSION_MIN} or newer; {java} is {said!r}")


class Brokers:
    """The brokers of `millstream up`, as they are seen from here."""

    def __init__(self, servers: str, directory: Path) -> None:
        self.servers = servers
        """Their addresses, as clients take them."""
        self._directory = directory

    def kill(self, broker_id: int) -> None:
        """As a crash would end it: nothing is closed, no peer is notified."""
        pid_file = self._directory / f"broker-{broker_id}" / "millstream.pid"
        os.kill(int(pid_file.read_text()), signal.SIGKILL)


@contextmanager
def running_brokers(directory: Path, count: int = BROKERS) -> Iterator[Brokers]:
    """`millstream up` on free ports. Raises DemoFailed."""
    directory.mkdir(parents=True)
    log = directory / "brokers.log"
    options = ("--brokers", str(count), "--port", "0", "--data-dir", str(directory))
    with log.open("wb") as errors, _running(["-m", "millstream", "up", *options], errors) as up:
        line = up.stdout.readline() if up.stdout else ""
        if not line.startswith("ready: "):
            raise DemoFailed(f"the brokers did not start:\n{log.read_text()}")
        yield Brokers(line.removeprefix("ready: ").strip(), directory)


class Shop:
    """The process that writes the orders, as it is seen from here."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log
        self.reports: list[tuple[float, OrdersProgress]] = []
        """Its progress reports, with the time of each."""
        threading.Thread(target=self._listen, name="shop", daemon=True).start()

    def _listen(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self.reports.append((time.time(), OrdersProgress.from_line(line)))

    def open_next_morning(self) -> None:
        """The first order of the next day; returns when it is stored. Raises DemoFailed."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it ended: `check` says how
                self._process.stdin.write("open\n")
                self._process.stdin.flush()
        self._process.wait(STOP_TIMEOUT_S)
        self.check()

    def check(self) -> None:
        """Raises DemoFailed when it ended with an error."""
        code = self._process.poll()
        if code:
            raise DemoFailed(f"the shop ended with {code}:\n{self._log.read_text()[-2000:]}")


@contextmanager
def running_shop(servers: str, day: Day, *, seconds: float, log: Path) -> Iterator[Shop]:
    """Writes the day's orders in so many seconds."""
    numbers = ("--seed", day.seed, "--events", day.event_count, "--seconds", seconds)
    command = ["-m", "examples.shop.traffic", servers, *map(str, numbers)]
    with log.open("wb") as errors, _running(command, errors) as process:
        yield Shop(process, log)


@contextmanager
def running_spark(directory: Path) -> Iterator[SparkSession]:
    """A session on the cores of this machine; what it and its workers say goes to a file."""
    with _outputs_to(directory / "spark.log"):
        spark = local_session(directory.absolute() / "spark")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _outputs_to(log: Path) -> Iterator[None]:
    """For the processes that are started meanwhile: they inherit our outputs."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as file, ExitStack() as stack:
        for output in (1, 2):
            kept = os.dup(output)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, output)
            os.dup2(file.fileno(), output)
        yield


@contextmanager
def _running(arguments: Sequence[str], errors: IO[bytes]) -> "Iterator[subprocess.Popen[str]]":
    setpriv = shutil.which("setpriv")
    dies_with_us = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    process = subprocess.Popen(
        [*dies_with_us, sys.executable, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()
