"""A Spark program in processes of its own that can be controlled and killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.spark.control import ControlServer, Report
from millstream.testing.chaos.spark.driver import FAILED, PROGRAM, READY, STOPPED
from millstream.testing.chaos.spark.query import QuerySpec
from millstream.testing.wait_until import wait_until

LOCAL: Final = "local[2,4]"
"""Tasks are retried, as on a cluster: by default a local session gives up at once."""
START_MAX_S: Final = 180.0
END_MAX_S: Final = 60.0
"""How long the processes of a killed driver may stay."""
_MODULE: Final = "millstream.testing.chaos.spark.driver"


class SparkDriver:
    """Has an operating-system session of its own, by which all its processes are found."""

    retries_tasks = True

    def __init__(
        self,
        directory: Path,
        control: ControlServer,
        *,
        master: str = LOCAL,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._control = control
        self.master = master
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "driver.log"
        command = [sys.executable, "-m", _MODULE, str(directory), str(control.path), master]
        command.append(json.dumps(dict(settings or {})))
        with self.log.open("a") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        try:
            wait_until(self._is_ready, f"a Spark session, see {self.log}", timeout_s=START_MAX_S)
        except ChaosFailed:
            self.close()
            raise
        self.jvm_pid = int(self._reports(PROGRAM, READY)[0].facts["jvm"])

    # -- queries

    def start(self, spec: QuerySpec) -> None:
        """Start a new query, or continue one."""
        self._command({"start": spec.to_dict()})

    def stop(self, query: str) -> None:
        """Stop a query and return when it is over."""
        ends = len(self._reports(query, STOPPED)) + len(self.failures(query))
        self._command({"stop": query})
        wait_until(
            lambda: len(self._reports(query, STOPPED)) + len(self.failures(query)) > ends,
            f"the query {query} stops",
            timeout_s=END_MAX_S,
        )

    def failures(self, query: str) -> list[str]:
        """The reasons why it stopped by itself, one for each time."""
        return [str(one.facts["why"]) for one in self._reports(query, FAILED)]

    # -- the end

    def kill(self) -> None:
        """Kill the program and its JVM at once; its workers have to notice by themselves."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(END_MAX_S)
        if self._process.stdin is not None:
            self._process.stdin.close()

    def wait_for_workers_to_end(self) -> None:
        """Raises ChaosFailed for one that outlives its driver."""
        wait_until(
            lambda: not session_members(self._process.pid),
            "the workers of a killed driver end",
            timeout_s=END_MAX_S,
        )

    def close(self) -> None:
        """End all its processes, in whatever state they are."""
        if self._process.poll() is None:
            self.kill()
        for pid in session_members(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def check_alive(self) -> None:
        if self._process.poll() is not None:
            raise ChaosFailed(f"the driver ended by itself; see {self.log}")

    def _is_ready(self) -> bool:
        self.check_alive()
        return bool(self._reports(PROGRAM, READY))

    def _reports(self, query: str, what: str) -> list[Report]:
        found = self._control.reports(query, what)
        return [one for one in found if one.pid == self._process.pid]

    def _command(self, command: dict[str, object]) -> None:
        self.check_alive()
        pipe = self._process.stdin
        if pipe is not None:
            pipe.write(json.dumps(command).encode() + b"\n")
            pipe.flush()


def session_members(session_id: int) -> list[int]:
    """Living processes of an operating-system session."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        fields = _stat(path)
        if fields and int(fields[3]) == session_id and fields[0] not in "ZX":
            found.append(int(path.name))
    return found


def parent_of(pid: int) -> int:
    """Raises ChaosFailed when the process is gone."""
    fields = _stat(Path(f"/proc/{pid}"))
    if not fields:
        raise ChaosFailed(f"the process {pid} is gone")
    return int(fields[1])


def _stat(path: Path) -> list[str]:
    """State, parent, group, session and more; the name before them may hold anything."""
    try:
        return (path / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
