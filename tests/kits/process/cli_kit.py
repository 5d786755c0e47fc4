"""Logs on the real disk for the command line to inspect, and the command line itself."""

from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from millstream.cli.app import app
from millstream.model.ids import LeaderEpoch, TopicPartition
from millstream.runtime.os_disk import OsDisk
from millstream.testing.log_kit import open_log
from millstream.testing.record_batches import Pair, build_batch
from millstream.testing.sim.clock import ManualClock


class Outcome(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


def millstream(*arguments: str | Path) -> Outcome:
    """Run the command in this process; an exception that leaves it fails the test."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(
        app, [str(one) for one in arguments], catch_exceptions=False
    )
    return Outcome(result.exit_code, result.stdout, result.stderr)


def write_log(root: Path, topic: str = "events", *, batches: int = 10) -> Path:
    """A partition of several small segments: three records a batch, `k0`, `v0` and so on."""
    partition = TopicPartition(topic, 0)
    opened = open_log(OsDisk(), ManualClock(), root=str(root), partition=partition)
    for number in range(0, batches * 3, 3):
        pairs: list[Pair] = [(b"k%d" % at, b"v%d" % at) for at in range(number, number + 3)]
        opened.log.append_as_leader(build_batch(pairs), leader_epoch=LeaderEpoch(0))
    opened.close()
    return root / str(partition)


def flip_byte(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def everything_below(root: Path) -> dict[str, tuple[int, bytes]]:
    """Name, modification time and content of every file, to check that none was changed."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted([root, *root.rglob("*")])
    }
