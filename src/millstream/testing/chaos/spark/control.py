"""How the processes of a query under test report where they are, and are held there.

Spark runs a source and a sink in half a dozen processes that come and go. Each connects for one
message, a line of JSON, and waits for the answer: the test knows exactly where the query is when it
kills something, because the query stays there until it is released or dies.
"""

import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from typing import Any, Final, Self

HELD_MAX_S: Final = 300.0
"""A process that is held longer continues by itself: the test that held it is gone or hangs."""
_GO: Final = b"go\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One message of one process."""

    query: str
    what: str
    pid: int
    batch: int | None = None
    """Set in reports of tasks: nothing else in Python knows the batch."""
    task: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Hook:
    """The query's side of the connection; travels by pickle."""

    def __init__(self, path: str, query: str) -> None:
        self._path = path
        self._query = query

    def report(
        self,
        what: str,
        *,
        batch: int | None = None,
        task: int | None = None,
        **facts: object,
    ) -> None:
        """Return when the query may continue; at once when the server is gone."""
        message = {"query": self._query, "what": what, "pid": os.getpid()}
        message |= {"batch": batch, "task": task, "facts": facts}
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(HELD_MAX_S)
                connection.connect(self._path)
                connection.sendall(json.dumps(message).encode() + b"\n")
                connection.recv(len(_GO))
        except OSError:
            return


class Breakpoint:
    """Holds the first report that matches, and the process that sent it."""

    def __init__(self, matches: Callable[[Report], bool]) -> None:
        self.matches = matches
        self.report: Report | None = None
        self.is_hit = threading.Event()
        self.resume = threading.Event()


class ControlServer:
    """Receives the reports."""

    def __init__(self) -> None:
        # Not where the test's files are: a socket's path must be short.
        self._directory = Path(tempfile.mkdtemp(prefix="control-"))
        self.path = self._directory / "socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._reports: list[Report] = []
        self._breakpoint: Breakpoint | None = None
        self._thread = threading.Thread(target=self._accept, name="chaos control", daemon=True)
        self._thread.start()

    def reports(self, query: str, what: str) -> list[Report]:
        """All reports of a kind so far."""
        with self._lock:
            return [one for one in self._reports if (one.query, one.what) == (query, what)]

    def set_breakpoint(self, matches: Callable[[Report], bool]) -> Breakpoint:
        """Hold the next report that matches; release it by `resume`."""
        with self._lock:
            self._breakpoint = Breakpoint(matches)
            return self._breakpoint

    @property
    def current(self) -> Breakpoint | None:
        """The breakpoint that was set last."""
        return self._breakpoint

    def release(self) -> None:
        """Clear the breakpoint and release the process that it holds."""
        with self._lock:
            point, self._breakpoint = self._breakpoint, None
        if point is not None:
            point.resume.set()

    def close(self) -> None:
        self.release()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(HELD_MAX_S)
        rmtree(self._directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            serve = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            serve.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            line = connection.makefile("rb").readline()
            if not line.endswith(b"\n"):
                return  # killed in the middle of it
            point = self._take(Report(**json.loads(line)))
            if point is not None:
                point.is_hit.set()
                point.resume.wait(HELD_MAX_S)
            try:
                connection.sendall(_GO)
            except OSError:
                return

    def _take(self, report: Report) -> Breakpoint | None:
        with self._lock:
            self._reports.append(report)
            point = self._breakpoint
            if point is None or point.report is not None or not point.matches(report):
                return None
            point.report = report
            return point
