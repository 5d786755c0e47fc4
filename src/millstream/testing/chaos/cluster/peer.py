"""Apache Kafka instead of our brokers, so that the chaos itself can be tested on a known good
cluster: what fails there too is a bug of the test.

A controller process is its coordination service; a session is a broker's heartbeat timeout. Its
Metadata response names a random broker as the controller, so that here nearly every action
is counted as a change: the counts of changes mean nothing on this peer.
"""

import signal
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from millstream.testing.chaos.cluster.processes import (
    BROKER_PORT,
    BROKER_SETTINGS,
    SESSION_MS,
    BrokerProcess,
    Coordination,
    NodeProcess,
)
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import NetWorld
from millstream.testing.peers.kafka import (
    START_TIMEOUT_S,
    STARTED_LINE,
    cluster_id,
    run_tool,
    server_command,
)
from millstream.testing.wait_until import wait_until

CONTROLLER_ID: Final = 100
CONTROLLER_PORT: Final = 9093
_OURS: Final = ("log.level", "zookeeper.session.timeout.ms", "replica.socket.timeout.ms")
_SETTINGS: Final[Mapping[str, str]] = {
    **{name: value for name, value in BROKER_SETTINGS.items() if name not in _OURS},
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "1000",
    "replica.socket.timeout.ms": "8000",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.io.threads": "2",
    "num.network.threads": "2",
}


class _KafkaNodeProcess(NodeProcess):
    """One node of Apache Kafka; it logs a line when it has started."""

    prints_ready_line = False
    stop_code = 128 + signal.SIGTERM
    _started_lines = 0

    def wait_ready(self) -> None:
        wait_until(self._has_started, f"{self.node} starts", timeout_s=START_TIMEOUT_S)
        self._started_lines += 1

    def _has_started(self) -> bool:
        self.check_alive()
        output = (self.directory / "stderr").read_bytes()
        return output.count(STARTED_LINE) > self._started_lines


class PeerBroker(_KafkaNodeProcess, BrokerProcess):
    """A broker of Apache Kafka with the interface of one of ours."""


class KafkaProcesses:
    """Creates the processes; formats their directories first."""

    def __init__(self, jars: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._jars = jars
        self._own_settings = settings or {}
        self._cluster_id = cluster_id(uuid.uuid4())
        self._voter = ""

    def coordination(self, world: NetWorld, root: Path) -> Coordination:
        node = world.add("controller")
        address = f"{node.address}:{CONTROLLER_PORT}"
        self._voter = f"{CONTROLLER_ID}@{address}"
        own = {"process.roles": "controller", "listeners": f"CONTROLLER://{address}"}
        self._format(root / node.name, CONTROLLER_ID, own)
        command = server_command(self._jars, root / node.name)
        return Coordination([_KafkaNodeProcess(node, root / node.name, command)], [address])

    def broker(self, world: NetWorld, root: Path, broker_id: int, connect: str) -> BrokerProcess:
        del connect  # the voter is in its file
        node = world.add(f"broker-{broker_id}")
        listener = f"PLAINTEXT://{node.address}:{BROKER_PORT}"
        own = {"process.roles": "broker", "listeners": listener}
        self._format(root / node.name, broker_id, own)
        command = server_command(self._jars, root / node.name)
        return PeerBroker(node, root / node.name, command, broker_id=broker_id)

    def _format(self, directory: Path, node_id: int, own: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        properties = directory / "server.properties"
        settings = {
            **_SETTINGS,
            **self._own_settings,
            "node.id": str(node_id),
            "controller.quorum.voters": self._voter,
            "log.dirs": str(directory / "data"),
            **own,
        }
        properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        words = ["format", "-t", self._cluster_id, "-c", str(properties)]
        done = run_tool(self._jars, "kafka.tools.StorageTool", words)
        if done.returncode != 0:
            raise ChaosFailed(f"format ended with {done.returncode}:\n{done.stdout}{done.stderr}")
