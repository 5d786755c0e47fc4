"""Processes of a cluster under chaos, each inside its node: brokers, keeper, ZooKeeper servers.

They are started, killed, stopped, paused and resumed; one that ends by itself fails the run, with
the end of its output.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from millstream.coordination.keeper.journal import SECRET_FILE
from millstream.model.config.properties import render_properties
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import Node
from millstream.testing.peers.zookeeper import TICK_MS, java_command
from millstream.testing.wait_until import wait_until

START_MAX_S: Final = 60.0
STOP_MAX_S: Final = 60.0
"""A clean stop hands over its leaderships first, and flushes."""
BROKER_PORT: Final = 9092
KEEPER_PORT: Final = 2181
SESSION_MS: Final = 6_000
TAIL_BYTES: Final = 4_000
_ENSEMBLE_PORTS: Final = (2888, 3888)
_ZOOKEEPER: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "log.level": "INFO",
    "auto.create.topics.enable": "false",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "zookeeper.session.timeout.ms": str(SESSION_MS),
    # A follower that is alive but cut from its leader leaves the ISR about when a dead one does.
    "replica.lag.time.max.ms": str(SESSION_MS),
    # A connection over a cut is given up in seconds; the defaults are five times as long.
    "replica.socket.timeout.ms": "8000",
    "request.timeout.ms": "8000",
    "socket.connection.setup.timeout.ms": "3000",
    "log.segment.bytes": "1048576",
    "log.retention.ms": "-1",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}


class NodeProcess:
    """One program in one node. Its log goes to `directory/stderr`."""

    prints_ready_line = True
    """It writes one line when it serves, and nothing else, to its standard output."""
    stop_code = 0
    """Its exit code after SIGTERM."""

    def __init__(self, node: Node, directory: Path, command: Sequence[str]) -> None:
        self.node: Final = node
        self.directory: Final = directory
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self.is_paused = False
        directory.mkdir(parents=True, exist_ok=True)

    def spawn(self) -> None:
        """Start it without waiting for anything."""
        if self._process is not None:
            raise ChaosFailed(f"{self.node} runs already")
        with (self.directory / "stderr").open("a") as errors:
            output = subprocess.PIPE if self.prints_ready_line else errors
            self._process = self.node.start(self._command, stdout=output, stderr=errors)
        self.is_paused = False

    def start(self) -> None:
        """Start it and return when it serves. Raises ChaosFailed."""
        self.spawn()
        self.wait_ready()

    def wait_ready(self) -> None:
        line = self._read_line(START_MAX_S)
        if not line.startswith("ready: "):
            raise ChaosFailed(f"{self.node} did not start (printed {line!r})\n{self.tail()}")

    @property
    def is_up(self) -> bool:
        """It was started, and not stopped or killed by the run."""
        return self._process is not None

    @property
    def process_id(self) -> int:
        """Of the program itself: what starts it inside the node becomes it."""
        if self._process is None:
            raise ChaosFailed(f"{self.node} is not running")
        return self._process.pid

    def check_alive(self) -> None:
        """Raise ChaosFailed when it has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            code = self._process.returncode
            raise ChaosFailed(f"{self.node} ended by itself with exit code {code}\n{self.tail()}")

    def kill(self) -> None:
        """SIGKILL, which also ends a paused process."""
        self.check_alive()
        self._end(signal.SIGKILL, -signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM; raises ChaosFailed unless it ends well and in time."""
        self.check_alive()
        self._end(signal.SIGTERM, self.stop_code)

    def pause(self) -> None:
        self._send(signal.SIGSTOP)
        self.is_paused = True

    def wake(self) -> None:
        self._send(signal.SIGCONT)
        self.is_paused = False

    def close(self) -> None:
        """Kill it, in whatever state it is."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_MAX_S)
            self._clear_process()

    def tail(self) -> str:
        """The end of its log."""
        output = (self.directory / "stderr").read_bytes()[-TAIL_BYTES:].decode(errors="replace")
        return f"--- end of {self.directory}/stderr\n{output}"

    def _send(self, number: signal.Signals) -> None:
        self.check_alive()
        if self._process is None:
            raise ChaosFailed(f"{self.node} is not running")
        self._process.send_signal(number)

    def _end(self, number: signal.Signals, expected: int) -> None:
        process = self._process
        if process is None:
            raise ChaosFailed(f"{self.node} is not running")
        process.send_signal(number)
        try:
            code = process.wait(STOP_MAX_S)
        except subprocess.TimeoutExpired:
            why = f"{self.node} did not end {STOP_MAX_S:.0f} s after {number.name}"
            raise ChaosFailed(f"{why}\n{self.tail()}") from None
        if code != expected:
            outcome = f"{self.node} ended with exit code {code} after {number.name}"
            raise ChaosFailed(f"{outcome}\n{self.tail()}")
        self._clear_process()

    def _clear_process(self) -> None:
        process, self._process = self._process, None
        self.is_paused = False
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _read_line(self, timeout_s: float) -> str:
        process = self._process
        if process is None or process.stdout is None:
            return ""
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        return process.stdout.readline() if ready else ""


class BrokerProcess(NodeProcess):
    """A broker of some kind, with all its data in its directory."""

    def __init__(
        self, node: Node, directory: Path, command: Sequence[str], *, broker_id: int
    ) -> None:
        super().__init__(node, directory, command)
        self.broker_id: Final = broker_id
        self.address: Final = f"{node.address}:{BROKER_PORT}"

    def log_bytes(self, topic: str, partition: int) -> bytes:
        """The bytes of the replica's log, all segments."""
        found = sorted(self.directory.glob(f"data/{topic}-{partition}/*.log"))
        return b"".join(path.read_bytes() for path in found)

    def drop_pages(self, topic: str, chance: SeededRandomness) -> int:
        """Drop a random range of each of the topic's logs from the page cache; return its size."""
        dropped = 0
        for path in sorted(self.directory.glob(f"data/{topic}-*/*.log")):
            with path.open("rb") as file:
                os.fsync(file.fileno())  # dirty pages cannot be dropped
                size = os.fstat(file.fileno()).st_size
                begin = chance.integer(0, size + 1)
                length = chance.integer(0, size - begin + 1)
                # A length of zero means up to the end.
                os.posix_fadvise(file.fileno(), begin, length, os.POSIX_FADV_DONTNEED)
                dropped += length or size - begin
        return dropped


class MillstreamBroker(BrokerProcess):
    """`millstream broker` with its own configuration file."""

    def __init__(
        self, node: Node, directory: Path, settings: Mapping[str, str], *, broker_id: int
    ) -> None:
        config = directory / "server.properties"
        module = ["-m", "millstream.broker.process", "--config", str(config)]
        super().__init__(node, directory, [sys.executable, *module], broker_id=broker_id)
        own = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": str(directory / "data"),
        }
        config.write_text(render_properties({**BROKER_SETTINGS, **own, **settings}))


class KeeperProcess(NodeProcess):
    """`millstream keeper`."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.address: Final = f"{node.address}:{KEEPER_PORT}"
        self.secret_file: Final = directory / "data" / SECRET_FILE
        options = ["--data-dir", str(directory / "data"), "--host", node.address]
        command = [sys.executable, "-m", "millstream", "keeper", *options]
        super().__init__(node, directory, [*command, "--port", str(KEEPER_PORT)])


class ZooKeeperProcess(NodeProcess):
    """One server of a real ensemble."""

    prints_ready_line = False

    def __init__(self, node: Node, directory: Path, number: int, addresses: Sequence[str]) -> None:
        self.address: Final = f"{node.address}:{KEEPER_PORT}"
        config = directory / "zoo.cfg"
        super().__init__(node, directory, java_command(_ZOOKEEPER, str(config)))
        data = directory / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(f"{number}\n")
        peer, election = _ENSEMBLE_PORTS
        settings: dict[str, object] = {
            "tickTime": TICK_MS,
            "initLimit": 20,
            "syncLimit": 10,
            "dataDir": data,
            "clientPort": KEEPER_PORT,
            "clientPortAddress": node.address,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        for member, address in enumerate(addresses, 1):
            settings[f"server.{member}"] = f"{address}:{peer}:{election}"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def wait_ready(self) -> None:
        """Wait until it serves, which it does only with a quorum."""
        wait_until(self._serves, f"{self.node} serves", timeout_s=START_MAX_S, pause_s=0.1)

    def _serves(self) -> bool:
        self.check_alive()
        output = b""
        try:
            with self.node.connect(self.node.address, KEEPER_PORT) as connection:
                connection.sendall(b"srvr")
                while chunk := connection.recv(65_536):
                    output += chunk
        except OSError:
            return False
        return b"Mode:" in output


class Coordination:
    """The keeper, or all servers of an ensemble, started and killed together."""

    def __init__(self, members: Sequence[NodeProcess], addresses: Sequence[str]) -> None:
        self.members: Final = members
        self.connect_string: Final = ",".join(addresses)

    def start(self) -> None:
        """Start the servers that are down; return when all of them serve."""
        missing = [one for one in self.members if not one.is_up]
        for one in missing:
            one.spawn()
        for one in missing:
            one.wait_ready()

    def kill(self) -> None:
        for one in self.members:
            one.kill()

    def close(self) -> None:
        for one in self.members:
            one.close()
