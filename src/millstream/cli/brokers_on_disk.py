"""The data directory of `millstream up`: one folder per broker with its settings and pid file.

A directory belongs to a cluster, even if that has one broker, and has the keeper's folder beside
the brokers'. One that was made by a standalone broker, which keeps its metadata in its own files,
is converted if possible.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from millstream.cli.replica_defaults import grown, mark, replica_defaults, with_setting
from millstream.model.config.properties import (
    parse_properties,
    read_settings_text,
    render_properties,
)
from millstream.runtime.private_files import write_private

PID_FILE: Final = "millstream.pid"
SETTINGS_FILE: Final = "server.properties"
HOST_DEFAULT: Final = "127.0.0.1"
PORT_DEFAULT: Final = 9092
KEEPER_FOLDER: Final = "keeper"
ZOOKEEPER: Final = "zookeeper.connect"
SECRET_SETTING: Final = "zookeeper.secret.file"  # noqa: S105 - a setting's name
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
        self._former: str | None = None
        """The settings before this start."""

    def prepare(
        self, *, host: str | None, port: int | None, cluster_size: int | None = None
    ) -> dict[str, str]:
        """Write the settings; those of an earlier run are kept, except a requested address.

        Replica settings that `up` wrote for fewer brokers are updated; returns what changed.
        Without `cluster_size` the broker is standalone. Raises BrokerRunning, OSError.
        """
        pid = self.running_pid()
        if pid is not None:
            raise BrokerRunning(
                f"broker {self.broker_id} in {self.path} is already running (pid {pid})"
            )
        for one in (self.path.parent, self.path):  # `mode` is not for parents that are made
            one.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            self._former = read_settings_text(self.settings_file)
        if not self.settings_file.exists():
            shown = _bracketed(host or HOST_DEFAULT)
            address = f"PLAINTEXT://{shown}:{PORT_DEFAULT if port is None else port}"
            defaults = self._defaults(cluster_size)
            first = "" if cluster_size is None else mark(cluster_size)
            self._replace(first + render_properties({"listeners": address, **defaults}))
            return {}
        self._follow_move()
        if host is not None or port is not None:
            name, old_host, old_port = self._address()
            new_port = old_port if port is None else port
            self._set_listeners(f"{name}://{_bracketed(host or old_host)}:{new_port}")
        return {} if cluster_size is None else self._grow(cluster_size)

    def _grow(self, cluster_size: int) -> dict[str, str]:
        new = grown(read_settings_text(self.settings_file), cluster_size)
        if new is None:
            return {}
        self._replace(new.text)
        return new.changes

    @property
    def settings(self) -> dict[str, str]:
        """As stored in the file."""
        return parse_properties(read_settings_text(self.settings_file))

    def undo(self) -> None:
        """Restore the settings after a failed start, so that they do not break the next one."""
        if self._former is None:
            self.settings_file.unlink(missing_ok=True)
        else:
            self._replace(self._former)

    def _follow_move(self) -> None:
        """Let a directory that was moved or copied serve its own data, not the original's.

        The path of the pid file shows for which directory the settings were written.
        """
        settings = parse_properties(read_settings_text(self.settings_file))
        former = Path(settings.get("pid.file", "")).parent
        if former in (self.path, Path()):
            return
        directories = []
        for one in settings.get("log.dirs", "").split(","):
            log_dir = Path(one.strip())
            inside = log_dir.is_relative_to(former)
            directories.append(str(self.path / log_dir.relative_to(former)) if inside else one)
        self._set("pid.file", str(self.pid_file))
        self._set("log.dirs", ",".join(directories))

    def keep_port(self, address: str) -> None:
        """Store the port that the system chose, so that the next start uses the same."""
        name, host, port = self._address()
        if port == "0":
            self._set_listeners(f"{name}://{host}:{address.rpartition(':')[2]}")

    def running_pid(self) -> int | None:
        """The pid in the pid file, if that process is a broker."""
        try:
            pid = int(self.pid_file.read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            return None
        # The pid may have been reused, or the directory copied with its pid file: ours has this
        # settings file on its command line.
        is_ours = any(self._is_settings_file(pid, os.fsdecode(one)) for one in command)
        return pid if is_ours and b"millstream" in b" ".join(command) else None

    def _is_settings_file(self, pid: int, argument: str) -> bool:
        """Whether it is this directory's, as the process with the pid sees it."""
        if not argument.endswith(SETTINGS_FILE):
            return False
        try:
            return os.path.samefile(os.path.join(f"/proc/{pid}/cwd", argument), self.settings_file)
        except OSError:
            return True  # of another user, or the file was removed: take no risk

    def _defaults(self, cluster_size: int | None) -> dict[str, str]:
        return {
            "broker.id": str(self.broker_id),
            "log.dirs": str(self.path / "data"),
            "pid.file": str(self.pid_file),
            # As in the file that comes with Kafka: a user who tries it out has no ten consumers
            # that start together, and would only see the first one hang for three seconds.
            "group.initial.rebalance.delay.ms": "0",
            **replica_defaults(cluster_size),
        }

    @property
    def keeper_address(self) -> str:
        """Address of its coordination service; "" for a standalone broker or a missing file."""
        try:
            return parse_properties(read_settings_text(self.settings_file)).get(ZOOKEEPER, "")
        except FileNotFoundError:
            return ""

    def set_keeper(self, address: str, secret_file: Path) -> None:
        """Point the broker at the keeper, whose port may have changed since the last start, and at
        the file with the secret that the keeper requires.
        """
        found = self.settings
        for name, value in ((ZOOKEEPER, address), (SECRET_SETTING, str(secret_file))):
            if found.get(name) != value:
                self._set(name, value)

    def set_rack(self, rack: str) -> None:
        """Set `broker.rack`."""
        self._set("broker.rack", rack)

    @property
    def port(self) -> int:
        """As configured; 0 lets the system choose."""
        return int(self._address()[2])

    def _address(self) -> tuple[str, str, str]:
        """Name, host and port of the first listener."""
        listeners = parse_properties(read_settings_text(self.settings_file)).get("listeners", "")
        name, _, address = listeners.partition(",")[0].partition("://")
        host, _, port = address.rpartition(":")
        return name or "PLAINTEXT", host or HOST_DEFAULT, port or str(PORT_DEFAULT)

    def _set_listeners(self, address: str) -> None:
        former = parse_properties(read_settings_text(self.settings_file)).get("listeners", "")
        self._set("listeners", ",".join([address, *former.split(",")[1:]]))

    def _set(self, key: str, value: str) -> None:
        self._replace(with_setting(read_settings_text(self.settings_file), key, value))

    def _replace(self, text: str) -> None:
        temporary = self.settings_file.with_suffix(".tmp")
        write_private(temporary, text)
        temporary.replace(self.settings_file)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def brokers_of(data_dir: Path) -> Iterator[BrokerDirectory]:
    """Every broker with a folder in the data directory."""
    for path in sorted(data_dir.glob(f"{_PREFIX}*")):
        number = path.name.removeprefix(_PREFIX)
        if number.isdigit():
            yield BrokerDirectory(data_dir, int(number))
