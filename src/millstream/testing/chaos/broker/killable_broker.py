"""A broker in a process of its own that is killed and restarted: same port, same data."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from millstream.model.config.properties import render_properties
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.peers.kafka import free_ports

STOP_MAX_S: Final = 60.0


class KillableBroker:
    """Starts on entry. Its log lines are in `directory/stderr`."""

    def __init__(self, directory: Path, settings: Mapping[str, str] | None = None) -> None:
        self._directory = directory
        self._settings = dict(settings or {})
        (port,) = free_ports(1)
        self.bootstrap_servers = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> Self:
        """Start it and return when it serves. Raises ChaosFailed."""
        self._directory.mkdir(parents=True, exist_ok=True)
        config = self._directory / "server.properties"
        settings = {
            "broker.id": "1",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "log.dirs": str(self._directory / "data"),
            **self._settings,
        }
        config.write_text(render_properties(settings))
        command = [sys.executable, "-m", "millstream.broker.process", "--config", str(config)]
        with (self._directory / "stderr").open("a") as errors:
            process = subprocess.Popen(  # noqa: S603
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._process = process
        line = process.stdout.readline() if process.stdout is not None else ""
        if not line.startswith("ready: "):
            raise ChaosFailed(f"the broker did not start; see {self._directory}/stderr")
        return self

    def kill(self) -> None:
        """SIGKILL; raises ChaosFailed when it had ended by itself."""
        process = self._process
        if process is None or process.poll() is not None:
            raise ChaosFailed(f"the broker ended by itself; see {self._directory}/stderr")
        self._end(process, signal.SIGKILL)

    def stop(self) -> None:
        if self._process is not None:
            self._end(self._process, signal.SIGTERM)

    def _end(self, process: "subprocess.Popen[str]", number: signal.Signals) -> None:
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_MAX_S)
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
