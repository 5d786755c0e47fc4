"""A real Apache Kafka on this machine, broker and controller in one, on loopback.

One standalone process, or several nodes of one cluster, each with its own `NodeConfig`.
"""

import base64
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from millstream.runtime.clock import Clock, SystemClock
from millstream.testing.peers.maven import Artifact, fetch_jars
from millstream.testing.peers.runtimes import find_runtime

KAFKA_VERSION: Final = "4.3.1"
LOG4J_VERSION: Final = "2.25.4"

# Short-lived and small: the serial collector and only the first compiler start fastest.
TEST_JVM_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
TOOL_TIMEOUT_S: Final = 240.0
LOG_TAIL_LINES: Final = 40
STARTED_LINE: Final = b"Kafka Server started"

# Below the range from which the system hands out ports to outgoing connections.
PORTS: Final = range(15_000, 32_000)

DEFAULT_SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "8388608",
    # A killed broker can register again only when its old session has expired: nine seconds by
    # default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "300",
    "num.io.threads": "2",
    "num.network.threads": "2",
}

_LOGGING: Final = """status = off
appender.out.type = Console
appender.out.name = out
appender.out.target = {target}
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c{{1}} %m%n
rootLogger.level = {level}
rootLogger.appenderRefs = out
rootLogger.appenderRef.out.ref = out
"""


class PeerFailedError(RuntimeError):
    """The peer did not start, or ended by itself; the message carries the end of its log."""


def kafka_jars(cache: Path, version: str = KAFKA_VERSION) -> Path:
    """The directory with Kafka's broker, client and tools, fetched into `cache` when needed."""
    artifacts = [
        Artifact("org.apache.kafka", "kafka_2.13", version),
        Artifact("org.apache.kafka", "kafka-tools", version),
        Artifact("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J_VERSION),
    ]
    return fetch_jars(cache / f"kafka-{version}", artifacts)


def run_tool(
    jars: Path, main_class: str, arguments: Sequence[str], *, timeout_s: float = TOOL_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """One of Kafka's command-line programs, with its own logging off and its output in UTF-8."""
    with tempfile.TemporaryDirectory(prefix="millstream-tool-") as scratch:
        logging = Path(scratch) / "log4j2.properties"
        logging.write_text(_LOGGING.format(level="OFF", target="SYSTEM_ERR"))
        command = [*_java(jars, logging, TEST_JVM_OPTIONS), main_class, *arguments]
        done = subprocess.run(  # noqa: S603 - our own arguments
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    # Not in text mode, which would turn the carriage returns of a record into newlines.
    stdout, stderr = (output.decode(errors="replace") for output in (done.stdout, done.stderr))
    return subprocess.CompletedProcess(command, done.returncode, stdout, stderr)


def cluster_id(source: uuid.UUID) -> str:
    """Kafka's form of an id. One in 64 would begin with '-', which its tools take for an option."""
    text = base64.urlsafe_b64encode(source.bytes).decode().rstrip("=")
    return text if text[0] != "-" else "A" + text[1:]


class Ports(NamedTuple):
    """The ports of one node."""

    clients: int
    controller: int


class NodeConfig(NamedTuple):
    """One node of a cluster; all nodes are voters of its quorum."""

    node_id: int
    nodes: tuple[Ports, ...]
    """The ports of all nodes; their ids count from 1."""
    cluster: str

    @property
    def ports(self) -> Ports:
        return self.nodes[self.node_id - 1]

    @property
    def voters(self) -> str:
        numbered = enumerate(self.nodes, 1)
        return ",".join(f"{number}@127.0.0.1:{ports.controller}" for number, ports in numbered)


def node_configs(count: int) -> list[NodeConfig]:
    """Configurations for `count` nodes of one cluster, on free ports."""
    ports = free_ports(2 * count)
    nodes = tuple(Ports(*ports[at : at + 2]) for at in range(0, 2 * count, 2))
    named = cluster_id(uuid.uuid4())
    return [NodeConfig(number, nodes, named) for number in range(1, count + 1)]


class ApacheKafka:
    """One node in `directory`; `start` formats it the first time and keeps ports and data after.

    As a context manager it starts on entry and leaves no process behind; when the block fails, the
    end of the server's log goes with the error. The process also dies with the thread that
    started it, so a killed test run leaves nothing.
    """

    def __init__(
        self,
        directory: Path,
        *,
        jars: Path,
        settings: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = TEST_JVM_OPTIONS,
        node: NodeConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`node`: its part in a cluster; without it the node is standalone."""
        self.directory: Final = directory
        self.log_file: Final = directory / "server.log"
        self.data_directory: Final = directory / "data"
        self._jars = jars
        self._jvm_options = jvm_options
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_position = 0
        self._is_standalone = node is None
        self._node = node or node_configs(1)[0]
        self._settings = {
            **DEFAULT_SETTINGS,
            "node.id": str(self._node.node_id),
            "log.dirs": str(self.data_directory),
            **_network(self._node, is_standalone=self._is_standalone),
            **(settings or {}),
        }

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._node.ports.clients}"

    @property
    def process_id(self) -> int | None:
        """The id of the running server's process; None when there is none."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Return when the server serves; PeerFailedError when it ends or takes too long."""
        self.spawn()
        self.wait_ready()

    def format(self) -> None:
        """Make the data directory, unless there is one: `spawn` does it too."""
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings.items()))
        if not (self.data_directory / "meta.properties").exists():
            self._format(properties)

    def spawn(self) -> None:
        """Start without waiting: nodes of one cluster serve only when a majority is up."""
        if self._process is not None:
            raise RuntimeError("Kafka is already started")
        self.format()
        command = server_command(self._jars, self.directory, self._jvm_options)
        with self.log_file.open("ab") as log:
            self._log_position = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own arguments
                [*_die_with_parent(), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only the test run, which stops Kafka
            )

    def wait_ready(self) -> None:
        """After `spawn`: wait until it serves; it is killed when it does not."""
        try:
            self._wait_until_started(self._log_position)
        except BaseException:
            if self._process is not None:
                self.kill()
            raise

    def stop(self) -> None:
        """Clean shutdown (SIGTERM); SIGKILL and an error when it does not end."""
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise PeerFailedError(f"Kafka did not stop\n{self.log_tail()}") from None
        self._process = None

    def kill(self) -> None:
        """SIGKILL: no shutdown work at all."""
        process = self._running()
        process.kill()
        process.wait()
        self._process = None

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        if not self.log_file.exists():
            return "(no server log)"
        lines = self.log_file.read_text(errors="replace").splitlines()
        return "\n".join([f"--- end of {self.log_file}", *lines[-LOG_TAIL_LINES:]])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(self.log_tail())
        if self._process is None:
            return
        if error is not None:
            self.kill()
        else:
            self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("Kafka is not started")
        return self._process

    def _format(self, properties: Path) -> None:
        arguments = ["format", "-t", self._node.cluster, "-c", str(properties)]
        if self._is_standalone:
            arguments.append("--standalone")
        done = run_tool(self._jars, "kafka.tools.StorageTool", arguments)
        if done.returncode != 0:
            raise PeerFailedError(
                f"format ended with {done.returncode}:\n{done.stdout}{done.stderr}"
            )

    def _wait_until_started(self, log_position: int) -> None:
        process = self._running()
        deadline_s = self._clock.monotonic_s() + START_TIMEOUT_S
        while self._clock.monotonic_s() < deadline_s:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                with self.log_file.open("rb") as log:
                    log.seek(log_position)
                    if STARTED_LINE in log.read():
                        return
            else:
                self._process = None
                code = process.returncode
                raise PeerFailedError(f"Kafka ended with {code}\n{self.log_tail()}")
        raise PeerFailedError(f"Kafka did not start in {START_TIMEOUT_S} s\n{self.log_tail()}")


def _network(node: NodeConfig, *, is_standalone: bool) -> dict[str, str]:
    clients, controller = (f"127.0.0.1:{port}" for port in node.ports)
    found = {"listeners": f"PLAINTEXT://{clients},CONTROLLER://{controller}"}
    if is_standalone:
        return {**found, "controller.quorum.bootstrap.servers": controller}
    return {**found, "controller.quorum.voters": node.voters}


def free_ports(count: int) -> list[int]:
    """Different loopback ports that are free now."""
    ports: list[int] = []
    while len(ports) < count:
        port = PORTS[secrets.randbelow(len(PORTS))]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


def server_command(
    jars: Path, directory: Path, jvm_options: Sequence[str] = TEST_JVM_OPTIONS
) -> list[str]:
    """The command for the node whose `server.properties` is in the directory; it logs to stdout."""
    directory.mkdir(parents=True, exist_ok=True)
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING.format(level="INFO", target="SYSTEM_OUT"))
    java = _java(jars, logging, jvm_options)
    return [*java, "kafka.Kafka", str(directory / "server.properties")]


def _java(jars: Path, logging: Path, jvm_options: Sequence[str]) -> list[str]:
    return [
        str(find_runtime("java")),
        *jvm_options,
        "-Dfile.encoding=UTF-8",
        "-Dsun.stdout.encoding=UTF-8",
        "-Dsun.stderr.encoding=UTF-8",
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        f"{jars}{os.sep}*",
    ]


def _die_with_parent() -> list[str]:
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
