"""Starts broker processes, reports when one dies, and stops all of a data directory at the end.

It neither restarts a broker nor stops the others when one dies: that is the operator's decision. A
broker that was restarted by hand is found by its pid file and stopped with the rest.

If this process is killed its brokers stop by themselves: their standard input is a pipe whose other
end only this process has, and the kernel closes it. A parent-death signal (PR_SET_PDEATHSIG) would
be sent when the thread that started them ends, even if the process lives on.
"""

import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.cli.brokers_on_disk import BrokerDirectory, brokers_of
from millstream.runtime.clock import SystemClock

if TYPE_CHECKING:
    from millstream.broker.start_failure import StartFailure

START_TIMEOUT_S: Final = 120.0
"""Recovery of a large log after a crash takes time."""
STOP_TIMEOUT_S: Final = 30.0
EXIT_WAIT_S: Final = 1.0
POLL_S: Final = 0.05
_READY: Final = "ready: "
_METRICS: Final = "metrics: "
_FAILED: Final = "failed: "
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Launch(NamedTuple):
    """A broker to start."""

    directory: BrokerDirectory
    environment: Mapping[str, str]
    """Settings of this start; they override the file."""
    metrics_port: int | None
    """Port for metrics if it is free; None: the settings decide."""


class Ready(NamedTuple):
    """Addresses of a broker that is ready."""

    addresses: list[str]
    metrics: str | None
    """host:port; None where they are not served."""


class StartFailed(Exception):
    """A broker did not become ready."""

    def __init__(
        self, broker_id: int, exit_code: int | None, failure: "StartFailure | None" = None
    ) -> None:
        self.exit_code = exit_code
        """None: it did not end in time."""
        self.failure = failure
        """As the broker reported it; None: it could not, its standard error has the cause."""
        how = f"not ready after {START_TIMEOUT_S:.0f} s" if exit_code is None else ""
        how = failure.reason if failure is not None else how or _how_ended(exit_code or 0)
        super().__init__(f"broker {broker_id} did not start: {how}")


class StartStopped(Exception):
    """A signal to stop came before every broker was ready."""


class Supervisor:
    """For the main thread of a process, because it handles signals."""

    def __init__(self, data_dir: Path, complain: Callable[[str], None]) -> None:
        self._data_dir = data_dir
        self._complain = complain
        self._clock = SystemClock()
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        # Handlers only write the signal's number to a socket: it is processed in one place.
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        self._is_stopping = False
        self._lifeline, self._alive = os.pipe()
        """The brokers' end, and ours, which no child inherits."""

    def start(self, launches: Sequence[Launch]) -> list[Ready]:
        """Start the brokers and wait until all are ready. Raises StartFailed."""
        for one in launches:
            directory = one.directory
            port = () if one.metrics_port is None else ("--metrics-port", str(one.metrics_port))
            self._children[directory.broker_id] = subprocess.Popen(  # noqa: S603 - our own module
                [
                    *(sys.executable, "-m", "millstream", "broker", "--lifeline", "0", *port),
                    # Last: `running_pid` recognizes a broker by its settings file.
                    *("--config", str(directory.settings_file)),
                ],
                stdin=self._lifeline,
                stdout=subprocess.PIPE,
                env={**os.environ, **one.environment},
                # Ctrl-C goes to the terminal's process group: this process stops the brokers.
                start_new_session=True,
            )
        return self._await_ready([one.directory for one in launches])

    def wait(self) -> None:
        """Wait for a signal to stop; reports brokers that die meanwhile."""
        while not self._is_stopping:
            self._await_signal(None)
            self._report_deaths()

    def stop(self) -> None:
        """Stop every broker of the data directory, including those started by hand.

        One after the other: each hands its leaderships over to the remaining ones.
        """
        self._report_deaths()
        found = [one.running_pid() for one in brokers_of(self._data_dir)]
        pids = {pid for pid in found if pid is not None}
        pids |= {child.pid for child in self._children.values() if child.poll() is None}
        for pid in sorted(pids):
            self._stop_one(pid)
        self._close()

    def end(self) -> None:
        """Make `wait` return; may be called on any thread."""
        with suppress(OSError):  # already closed
            self._writer.send(bytes([signal.SIGTERM]))

    def _stop_one(self, pid: int) -> None:
        _send(pid, signal.SIGTERM)
        deadline_s = self._clock.monotonic_s() + STOP_TIMEOUT_S
        while self._is_alive(pid):
            if self._clock.monotonic_s() > deadline_s:
                self._complain(
                    f"the broker with pid {pid} did not stop within {STOP_TIMEOUT_S:.0f} s:"
                    " killing it"
                )
                _send(pid, signal.SIGKILL)
            self._await_signal(POLL_S)

    # -- inside ----------------------------------------------------------------------------

    def _await_ready(self, directories: Sequence[BrokerDirectory]) -> list[Ready]:
        """Wait for all at once: the first that fails ends the wait for the others."""
        texts = {one.broker_id: "" for one in directories}
        found: dict[int, Ready] = {}
        for broker_id, chunk in self._outputs(list(texts)) if texts else ():
            if broker_id in found:
                continue  # if it has died meanwhile, `wait` reports it
            texts[broker_id] += chunk
            ready = _ready_in(texts[broker_id])
            if ready is not None:
                found[broker_id] = ready
            elif not chunk:
                raise self._failed(broker_id, texts[broker_id])
            if len(found) == len(texts):
                break
        for one in directories:
            if one.broker_id not in found:
                raise self._failed(one.broker_id, "")
            one.keep_port(found[one.broker_id].addresses[0])
        return [found[one.broker_id] for one in directories]

    def _outputs(self, broker_ids: Sequence[int]) -> Iterator[tuple[int, str]]:
        """What brokers write to stdout, "" for its end, until START_TIMEOUT_S is over.

        Raises StartStopped when a signal to stop arrives.
        """
        deadline_s = self._clock.monotonic_s() + START_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            for number in broker_ids:
                output = self._children[number].stdout
                if output is not None:
                    selector.register(output, selectors.EVENT_READ, number)
            while (left_s := deadline_s - self._clock.monotonic_s()) > 0:
                ready = [key for key, _ in selector.select(left_s)]
                if any(key.fileobj is self._reader for key in ready):
                    self._take_signals()
                if self._is_stopping:
                    raise StartStopped
                for key in ready:
                    if key.fileobj is not self._reader:
                        chunk = os.read(key.fd, 4096)
                        if not chunk:
                            selector.unregister(key.fileobj)
                        yield key.data, chunk.decode(errors="replace")

    def _failed(self, broker_id: int, text: str) -> StartFailed:
        self._is_stopping = True  # all are stopped now: the others' ends are not reported
        reports = [line for line in text.splitlines() if line.startswith(_FAILED)]
        if not reports:
            return StartFailed(broker_id, self._ended(broker_id))
        from millstream.broker.start_failure import parse

        return StartFailed(broker_id, self._ended(broker_id), parse(reports[0]))

    def _await_signal(self, timeout_s: float | None) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            if selector.select(timeout_s):
                self._take_signals()

    def _take_signals(self) -> None:
        numbers = self._reader.recv(4096)
        self._is_stopping |= any(number != signal.SIGCHLD for number in numbers)

    def _report_deaths(self) -> None:
        for broker_id, child in list(self._children.items()):
            code = child.poll()
            if code is None:
                continue
            self._forget(broker_id)
            if not self._is_stopping:
                settings = BrokerDirectory(self._data_dir, broker_id).settings_file
                self._complain(
                    f"broker {broker_id} (pid {child.pid}) exited ({_how_ended(code)}); restart it"
                    f" with `millstream broker --config {settings}`"
                )

    def _ended(self, broker_id: int) -> int | None:
        """The exit code of a broker whose output has ended; None if it is still running."""
        try:
            code = self._children[broker_id].wait(EXIT_WAIT_S)
        except subprocess.TimeoutExpired:
            return None
        self._forget(broker_id)  # the caller reports the code
        return code

    def _forget(self, broker_id: int) -> None:
        child = self._children.pop(broker_id)
        if child.stdout is not None:
            child.stdout.close()

    def _is_alive(self, pid: int) -> bool:
        for child in self._children.values():
            if child.pid == pid:
                return child.poll() is None
        try:
            # Empty for a zombie.
            return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            return False

    def _close(self) -> None:
        self._report_deaths()
        signal.set_wakeup_fd(-1)
        self._reader.close()
        self._writer.close()
        for descriptor in (self._lifeline, self._alive):
            os.close(descriptor)


def _ready_in(text: str) -> Ready | None:
    """The addresses in a broker's output so far; None if it is not ready."""
    metrics = None
    for line in text.splitlines(keepends=True):
        if line.startswith(_METRICS):
            metrics = line.removeprefix(_METRICS).strip()
        elif line.startswith(_READY) and line.endswith("\n"):
            return Ready(line.removeprefix(_READY).strip().split(","), metrics)
    return None


def _how_ended(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
