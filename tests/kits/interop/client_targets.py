"""The broker that the client programs talk to: ours, or Apache Kafka to check the programs.

`make interop` uses ours. `INTEROP_TARGETS=kafka` (or `millstream,kafka`) runs the same tests on
Apache Kafka: a test that fails there is wrong, whatever our broker does.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from kits.paths import PEERS as PEERS
from millstream.kernels import batches
from millstream.kernels.errors import Reason
from millstream.model.limits import BATCH_BYTES_MAX
from millstream.testing.peers.kafka import ApacheKafka, kafka_jars
from millstream.testing.peers.runtimes import require_runtime

TARGET_NAMES: Final = tuple(os.environ.get("INTEROP_TARGETS", "millstream").split(","))
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 30.0
READY: Final = "ready: "

KAFKA_SETTINGS: Final = {
    "auto.create.topics.enable": "true",  # Kafka's default, which the harness turns off
    "num.partitions": "1",
}


class StoredBatch(NamedTuple):
    """The header of a batch on disk."""

    codec: str
    base_offset: int
    last_offset: int
    record_count: int
    producer_id: int
    base_sequence: int
    is_append_time: bool


class Target(NamedTuple):
    """A running broker with one log directory."""

    name: str
    servers: str
    data_directory: Path

    def stored(self, topic: str, partition: int = 0) -> list[StoredBatch]:
        """The batches of a partition as they lie in its files, CRC checked."""
        found: list[StoredBatch] = []
        for path in sorted((self.data_directory / f"{topic}-{partition}").glob("*.log")):
            data = path.read_bytes()
            rows, end, reason = batches.walk(
                data, 0, len(data), check_crc=True, size_max=BATCH_BYTES_MAX
            )
            assert (end, Reason(reason)) == (len(data), Reason.NONE), path
            found += [
                _stored(list(rows[at : at + batches.ROW_FIELDS]))
                for at in range(0, len(rows), batches.ROW_FIELDS)
            ]
        return found


def _stored(row: list[int]) -> StoredBatch:
    attributes = row[batches.ATTRIBUTES]
    return StoredBatch(
        codec=CODECS[attributes & 0x07],
        base_offset=row[batches.BASE_OFFSET],
        last_offset=row[batches.LAST_OFFSET],
        record_count=row[batches.RECORD_COUNT],
        producer_id=row[batches.PRODUCER_ID],
        base_sequence=row[batches.BASE_SEQUENCE],
        is_append_time=bool(attributes & 0x08),
    )


@contextmanager
def running(name: str, directory: Path) -> Iterator[Target]:
    """The broker `name`, with its data below `directory`, for as long as the block lasts."""
    if name == "kafka":
        require_runtime("java", "mvn")
        with ApacheKafka(directory, jars=kafka_jars(PEERS), settings=KAFKA_SETTINGS) as kafka:
            yield Target(name, kafka.bootstrap_servers, kafka.data_directory)
    elif name == "millstream":
        with _millstream(directory) as servers:
            yield Target(name, servers, _log_directory(directory / "broker-1"))
    else:
        raise ValueError(f"no target {name!r}: millstream or kafka")


@contextmanager
def _millstream(directory: Path) -> Iterator[str]:
    directory.mkdir(parents=True, exist_ok=True)
    setpriv = shutil.which("setpriv")  # a killed test run leaves no broker behind
    command = [setpriv, "--pdeathsig", "TERM"] if setpriv else []
    command += [str(Path(sys.executable).parent / "millstream"), "up", "--port", "0"]
    command += ["--data-dir", str(directory)]
    with (directory / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield _ready_line(process, directory / "up.log").removeprefix(READY)
        assert process.poll() is None, f"the broker ended:\n{(directory / 'up.log').read_text()}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            assert process.stdout is not None
            process.stdout.close()
    assert process.returncode == 0, (directory / "up.log").read_text()


def _ready_line(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    too_late = threading.Timer(START_TIMEOUT_S, process.kill)
    too_late.start()
    try:
        line = process.stdout.readline().decode().strip()
    finally:
        too_late.cancel()
    assert line.startswith(READY), f"said {line!r} instead of ready:\n{log.read_text()}"
    return line


def _log_directory(broker: Path) -> Path:
    lines = (broker / "server.properties").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
    name = settings.get("log.dirs") or settings["log.dir"]
    return broker / name.strip()
