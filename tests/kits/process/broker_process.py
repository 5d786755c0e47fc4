"""A broker in a process of its own, started for a test and stopped after it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kits.process.server_process import server_process
from kits.process.wire_client import WireClient
from millstream.model.config.properties import render_properties


class BrokerProcess(NamedTuple):
    process: "subprocess.Popen[str]"
    bootstrap_servers: str
    directory: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def client(self) -> WireClient:
        return WireClient(self.bootstrap_servers)

    @property
    def metrics_port(self) -> int:
        """Where it serves metrics, as its log says: with `metrics.port=0` the system chooses."""
        lines = (self.directory / "stderr").read_text().splitlines()
        *_, last = (one for one in lines if '"serving metrics"' in one)
        port: int = json.loads(last)["port"]
        return port

    def resident_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


@contextmanager
def broker_process(
    directory: Path,
    settings: Mapping[str, str] | None = None,
    *,
    port: int = 0,
    inside: Sequence[str] = (),
    program: str | None = None,
) -> Iterator[BrokerProcess]:
    """Its log lines are in `directory/stderr`; a broker that ended by itself fails the test.

    `program`: a file that runs a broker with something of its own, instead of the module.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "server.properties"
    config.write_text(
        render_properties(
            {
                "broker.id": "1",
                "listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "log.dirs": str(directory / "data"),
                **(settings or {}),
            }
        )
    )
    command = [program or "millstream.broker.process", "--config", str(config)]
    running = server_process(command, directory, inside=inside, is_file=program is not None)
    with running as (process, bootstrap_servers):
        yield BrokerProcess(process, bootstrap_servers, directory)
