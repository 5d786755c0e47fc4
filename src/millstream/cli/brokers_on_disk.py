"""The data directory of `millstream up`: one folder per broker with its settings and pid file."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from millstream.model.config.properties import parse_properties, render_properties

PID_FILE: Final = "millstream.pid"
SETTINGS_FILE: Final = "server.properties"
_PREFIX: Final = "broker-"


class BrokerRunning(Exception):
    """A broker of the directory runs already."""


class BrokerDirectory:
    """`DIR/broker-<id>`."""

    def __init__(self, data_dir: Path, broker_id: int) -> None:
        self.broker_id = broker_id
        self.path = data_dir / f"{_PREFIX}{broker_id}"
        self.settings_file = self.path / SETTINGS_FILE
        self.pid_file = self.path / PID_FILE

    def prepare(self, *, host: str, port: int | None, default_port: int) -> None:
        """Write the settings; those of an earlier run are kept, but for a port that is asked for.

        Raises BrokerRunning, OSError.
        """
        pid = self.running_pid()
        if pid is not None:
            raise BrokerRunning(f"broker {self.broker_id} of {self.path} runs already, pid {pid}")
        self.path.mkdir(parents=True, exist_ok=True)
        settings = self._settings()
        if port is not None or "listeners" not in settings:
            chosen = default_port if port is None else port
            settings["listeners"] = f"PLAINTEXT://{host}:{chosen}"
        self._write(settings)

    def keep_port(self, place: str) -> None:
        """Note the port that the system chose, so that the next start has the same."""
        settings = self._settings()
        listener = settings["listeners"]
        if listener.endswith(":0"):
            settings["listeners"] = listener[:-1] + place.rpartition(":")[2]
            self._write(settings)

    def running_pid(self) -> int | None:
        """The process that the pid file names, if that is a broker."""
        try:
            pid = int(self.pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        # The number may belong to another program by now: ours has its settings on its line.
        is_ours = os.fsencode(self.settings_file.name) in command[-2:][0] if command else False
        return pid if is_ours and b"millstream" in b" ".join(command) else None

    def _settings(self) -> dict[str, str]:
        defaults = {
            "broker.id": str(self.broker_id),
            "log.dirs": str(self.path / "data"),
            "pid.file": str(self.pid_file),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "default.replication.factor": "1",
        }
        try:
            text = self.settings_file.read_text()
        except FileNotFoundError:
            return defaults
        return defaults | parse_properties(text)

    def _write(self, settings: dict[str, str]) -> None:
        temporary = self.settings_file.with_suffix(".tmp")
        temporary.write_text(render_properties(settings))
        temporary.replace(self.settings_file)


def brokers_of(data_dir: Path) -> Iterator[BrokerDirectory]:
    """Every broker that has a folder in the data directory."""
    for path in sorted(data_dir.glob(f"{_PREFIX}*")):
        number = path.name.removeprefix(_PREFIX)
        if number.isdigit():
            yield BrokerDirectory(data_dir, int(number))
