"""The processes that run Spark, one for each connector, and the CPU that their trees use."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.broker_systems import TICKS, dies_with_us
from bench.spark_data import Topic

OURS = "millstream"
PEER = "kafka"
"""Names of the formats; the second is Spark's own connector."""
DEFAULT_MASTER = "local[2]"
STOP_TIMEOUT_S = 30.0


class Driver:
    """A session of Spark in a process of its own, for one connector."""

    def __init__(self, source: str, scratch: Path, jars: Path) -> None:
        self.source = source
        self.name = "ours" if source == OURS else "peer"
        self._scratch = (scratch / source).absolute()
        self._jars = jars.absolute()
        self._process: subprocess.Popen[str] | None = None

    @property
    def process_id(self) -> int:
        return self._running.pid

    @property
    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None:
            raise RuntimeError("not started")
        return self._process

    def start(self, master: str = DEFAULT_MASTER) -> None:
        self._scratch.mkdir(parents=True)
        command = [sys.executable, "-m", "bench.spark_program", str(self._scratch), str(self._jars)]
        with (self._scratch / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*dies_with_us(), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.run_job("session", master=master)

    def run_job(self, job: str, **arguments: object) -> dict[str, Any]:
        """Run one job to its end; raises the error of the job."""
        process = self._running
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("not started")
        process.stdin.write(json.dumps({"job": job, **arguments}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise RuntimeError(f"{self.name}: {job} failed: {answer['error']}")
        return answer

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def options(self, address: str, topic: Topic) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": address,
            "subscribe": topic.name,
            "startingOffsets": "earliest",
        }

    def _last_words(self) -> str:
        return (self._scratch / "log").read_text()[-4000:]


class Drivers(NamedTuple):
    """Both, running."""

    ours: Driver
    peer: Driver


@contextlib.contextmanager
def running(scratch: Path, jars: Path) -> Iterator[Drivers]:
    drivers = Drivers(Driver(OURS, scratch, jars), Driver(PEER, scratch, jars))
    try:
        for driver in drivers:
            driver.start()
        yield drivers
    finally:
        for driver in drivers:
            driver.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def tree_cpu_seconds(process_id: int) -> float:
    """CPU time of a process tree, also of children that ended and were waited for.

    For a driver: its Python, the JVM, the daemon that forks workers, and the workers.
    """
    times: dict[int, int] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
            times[int(directory.name)] = sum(map(int, fields[11:15]))
            children[int(fields[1])].append(int(directory.name))
    total, waiting = 0, [process_id]
    while waiting:
        one = waiting.pop()
        total += times.get(one, 0)
        waiting += children[one]
    return total / TICKS
