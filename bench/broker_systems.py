"""Ours and Apache Kafka as processes of their own, with production settings, on loopback.

Here one broker of each; `cluster_systems.py` makes clusters of the same.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from millstream.testing.peers.kafka import ApacheKafka, NodeConfig, free_ports, kafka_jars

PEERS = Path("build/peers")
JVM_OPTIONS = (
    "-Xms1G",
    "-Xmx1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""The JVM options of Kafka's own start script."""
KAFKA_SETTINGS = {
    "num.io.threads": "8",
    "num.network.threads": "3",
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "log.cleaner.dedupe.buffer.size": "134217728",
}
"""Kafka's defaults again, where the test harness has smaller ones."""
START_TIMEOUT_S = 30.0
OURS = "ours"
OURS_OF_ANOTHER_COMMIT = "ours of another commit"
AGAINST = os.environ.get("AGAINST")
"""A built tree of another commit, which is then the peer instead of Kafka."""
TICKS = os.sysconf("SC_CLK_TCK")
CPU_CLOCK_OF_PROCESS = 2
"""Linux's number of the scheduler's clock; with a process id it makes a clock id."""


class System(Protocol):
    """A broker, or a cluster, that runs."""

    name: str

    @property
    def address(self) -> str:
        """Addresses of all brokers for clients, separated by commas."""

    @property
    def process_ids(self) -> tuple[int, ...]:
        """All processes of the system: their CPU and memory are added up."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Server:
    """A process that prints `ready:` on its standard output when it serves."""

    def __init__(
        self, directory: Path, arguments: Iterable[str], *, tree: Path | None = None
    ) -> None:
        """`tree` is the source tree whose code is run, this one if None."""
        self._directory = directory
        self._arguments = tuple(arguments)
        self._environment = {**os.environ, "PYTHONPATH": str(tree / "src")} if tree else None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        if self._process is None:
            raise RuntimeError("not started")
        return self._process.pid

    @property
    def process_ids(self) -> tuple[int, ...]:
        return (self.process_id,)

    def start(self) -> None:
        self.spawn()
        self.wait_ready()

    def spawn(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        program = Path(sys.executable).parent / "millstream"
        with (self._directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*dies_with_us(), str(program), *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
            )

    def wait_ready(self) -> None:
        output = self._process.stdout if self._process is not None else None
        line = output.readline() if output is not None else b""
        if not line.startswith(b"ready:"):
            self.stop()
            raise RuntimeError((self._directory / "server.log").read_text()[-2000:])

    def stop(self) -> None:
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self._end(process)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._end(self._process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        self._process = None
        if process.stdout is not None:
            process.stdout.close()


class Millstream(Server):
    """Ours, without the supervisor of `millstream up`, metrics on."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        tree: Path | None = None,
    ) -> None:
        self._config = directory / "server.properties"
        super().__init__(directory, ["broker", "--config", str(self._config)], tree=tree)
        self.name = OURS if tree is None else OURS_OF_ANOTHER_COMMIT
        port, metrics_port = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self._settings = {
            "broker.id": "1",
            "log.dirs": str((directory / "data").absolute()),
            "listeners": f"PLAINTEXT://{self.address}",
            "metrics.port": str(metrics_port),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            **(settings or {}),
        }

    def spawn(self) -> None:
        self._config.parent.mkdir(parents=True, exist_ok=True)
        self._config.write_text("".join(f"{key}={text}\n" for key, text in self._settings.items()))
        super().spawn()


class Kafka:
    """The peer."""

    name = "Apache Kafka"

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        node: NodeConfig | None = None,
    ) -> None:
        self._kafka = ApacheKafka(
            directory,
            jars=kafka_jars(PEERS),
            settings={**KAFKA_SETTINGS, **(settings or {})},
            jvm_options=JVM_OPTIONS,
            node=node,
        )
        self.format = self._kafka.format
        self.spawn = self._kafka.spawn
        self.wait_ready = self._kafka.wait_ready

    @property
    def address(self) -> str:
        return self._kafka.bootstrap_servers

    @property
    def process_id(self) -> int:
        found = self._kafka.process_id
        if found is None:
            raise RuntimeError("not started")
        return found

    @property
    def process_ids(self) -> tuple[int, ...]:
        return (self.process_id,)

    def start(self) -> None:
        self._kafka.start()

    def stop(self) -> None:
        if self._kafka.process_id is not None:
            self._kafka.stop()

    def kill(self) -> None:
        if self._kafka.process_id is not None:
            self._kafka.kill()


def make_peer(directory: Path, settings: Mapping[str, str] | None = None) -> System:
    """Kafka, or ours of another commit."""
    if AGAINST is None:
        return Kafka(directory, settings)
    return Millstream(directory, settings, tree=Path(AGAINST))


class Systems(NamedTuple):
    """Both, running."""

    ours: System
    peer: System


@contextlib.contextmanager
def running(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[Systems]:
    """Both started, and stopped whatever happens; their data is removed.

    `settings` are given to both.
    """
    systems = Systems(
        Millstream(directory / "ours", settings), make_peer(directory / "peer", settings)
    )
    try:
        for system in systems:
            system.start()
        yield systems
    finally:
        for system in systems:
            system.stop()
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def only_ours(directory: Path) -> Iterator[System]:
    """Only ours, for cells that compare it with itself."""
    system = Millstream(directory / "ours")
    try:
        system.start()
        yield system
    finally:
        system.stop()
        shutil.rmtree(directory, ignore_errors=True)


def cpu_seconds(process_ids: Iterable[int]) -> float:
    """User and system time of all threads so far, by the processes' own clocks: not in ticks."""
    clocks = ((~process_id << 3) | CPU_CLOCK_OF_PROCESS for process_id in process_ids)
    return sum(map(time.clock_gettime, clocks))


def kernel_thread_seconds() -> float:
    """CPU time of the kernel's threads, which write back what both systems wrote."""
    total = 0
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (directory / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12]) if fields[1] == "2" else 0
    return total / TICKS


def resident_bytes(process_ids: Iterable[int]) -> int:
    return sum(map(_resident_bytes, process_ids))


def _resident_bytes(process_id: int) -> int:
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no memory figure of process {process_id}")


def page_cache_seconds_per_gb(directory: Path) -> float:
    """The CPU time of a gigabyte of new file pages on this machine, for any program."""
    target = directory / "fresh"
    before = os.times()
    command = ["dd", "if=/dev/zero", f"of={target}", "bs=1M", "count=1024", "status=none"]
    subprocess.run(command, check=True)
    after = os.times()
    target.unlink()
    used = after.children_user + after.children_system
    return (used - before.children_user - before.children_system) / 1.073741824


def wait_seconds(seconds: float) -> None:
    """For idle figures, where there is no condition to wait for."""
    time.sleep(seconds)


def dies_with_us() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
