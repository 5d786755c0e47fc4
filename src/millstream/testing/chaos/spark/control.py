"""How the processes of a query under test tell where they are, and are held there.

Spark runs a source and a sink in half a dozen processes that come and go. Each connects for one
message, a line of JSON, and waits for the answer: whoever kills knows exactly where the query is,
for it stays there until it is let go or dies.
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
"""A process that is held longer goes on by itself: the one that held it is gone or hangs."""
_GO: Final = b"go\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One message of one process."""

    query: str
    what: str
    pid: int
    batch: int | None = None
    """Where a task tells it: nothing else in Python knows the batch."""
    task: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


class Hook:
    """The side of the query; travels by pickle."""

    def __init__(self, path: str, query: str) -> None:
        self._path = path
        self._query = query

    def tell(
        self,
        what: str,
        *,
        batch: int | None = None,
        task: int | None = None,
        **facts: object,
    ) -> None:
        """Returns when it may go on; at once when nobody listens any more."""
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


class Catch:
    """The first message that fits is held, and whoever sent it."""

    def __init__(self, fits: Callable[[Told], bool]) -> None:
        self.fits = fits
        self.told: Told | None = None
        self.is_caught = threading.Event()
        self.may_go = threading.Event()


class Desk:
    """Where the messages arrive."""

    def __init__(self) -> None:
        # Not where the test's files are: a socket's path must be short.
        self._directory = Path(tempfile.mkdtemp(prefix="desk-"))
        self.path = self._directory / "socket"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._heard: list[Told] = []
        self._catch: Catch | None = None
        self._thread = threading.Thread(target=self._accept, name="chaos desk", daemon=True)
        self._thread.start()

    def heard(self, query: str, what: str) -> list[Told]:
        """All messages of a kind so far."""
        with self._lock:
            return [one for one in self._heard if (one.query, one.what) == (query, what)]

    def arm(self, fits: Callable[[Told], bool]) -> Catch:
        """From now on the next that fits is held; let it go by `may_go`."""
        with self._lock:
            self._catch = Catch(fits)
            return self._catch

    @property
    def current(self) -> Catch | None:
        """What was armed last."""
        return self._catch

    def let_go(self) -> None:
        """Whoever is held, or would be."""
        with self._lock:
            catch, self._catch = self._catch, None
        if catch is not None:
            catch.may_go.set()

    def close(self) -> None:
        self.let_go()
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
            catch = self._take(Told(**json.loads(line)))
            if catch is not None:
                catch.is_caught.set()
                catch.may_go.wait(HELD_MAX_S)
            try:
                connection.sendall(_GO)
            except OSError:
                return

    def _take(self, told: Told) -> Catch | None:
        with self._lock:
            self._heard.append(told)
            catch = self._catch
            if catch is None or catch.told is not None or not catch.fits(told):
                return None
            catch.told = told
            return catch
