"""A keeper in a process of its own, started for a test and stopped after it."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kits.coordination.coordination_kit import CREDENTIALS
from kits.process.server_process import server_process
from millstream.coordination.keeper.journal import SECRET_FILE
from millstream.runtime.private_files import write_private


class KeeperProcess(NamedTuple):
    process: "subprocess.Popen[str]"
    port: int
    directory: Path

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """Of a broker that uses it."""
        secret_file = self.directory / "data" / SECRET_FILE
        return {"zookeeper.connect": self.address, "zookeeper.secret.file": str(secret_file)}

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.terminate()
        return self.process.wait(20)

    def kill(self) -> None:
        """SIGKILL, as a crash would end it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(20)


@contextmanager
def keeper_process(
    directory: Path, *, port: int = 0, options: tuple[str, ...] = ()
) -> Iterator[KeeperProcess]:
    """Its log lines are in `directory/stderr`; a keeper that ended by itself fails the test.

    Its secret is the one of all stories.
    """
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    write_private(data / SECRET_FILE, CREDENTIALS.secret.reveal())
    module = ["millstream", "keeper", "--data-dir", str(data)]
    command = [*module, "--port", str(port), *options]
    with server_process(command, directory, good_ends=[0]) as (process, address):
        yield KeeperProcess(process, int(address.rpartition(":")[2]), directory)
