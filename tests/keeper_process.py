"""A keeper in a process of its own, started for a test and gone after it."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class KeeperProcess(NamedTuple):
    process: "subprocess.Popen[str]"
    port: int
    directory: Path

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> int:
        """SIGTERM; how it ended."""
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
    """Its log lines are in `directory/stderr`; a keeper that ended by itself fails the test."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "millstream", "keeper", "--data-dir", str(directory / "data")]
    with (directory / "stderr").open("a") as errors:
        process = subprocess.Popen(
            [*command, "--port", str(port), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: "), (directory / "stderr").read_text()
        yield KeeperProcess(process, int(line.rpartition(":")[2]), directory)
        code = process.poll()
        assert code in (None, 0, -signal.SIGKILL), (directory / "stderr").read_text()[-4000:]
    finally:
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        process.stdout.close()
