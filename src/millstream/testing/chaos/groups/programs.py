"""Foreign clients as members of groups: their programs in a node, and what each supports."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.testing.chaos.cluster.processes import NodeProcess
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import Node

ANSWER_MAX_S: Final = 90.0
"""The first answer waits for a JVM to start on a busy machine."""

EAGER, COOPERATIVE, CONSUMER = "eager", "cooperative", "consumer"


class MemberKind(NamedTuple):
    """A client and the group protocol it uses."""

    client: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.client}-{self.protocol}"


class Abilities(NamedTuple):
    """What members of a client can do beyond joining and leaving."""

    protocols: tuple[str, ...]
    follows_patterns: bool = True
    """It finds new topics that match, not only those that exist at the start."""
    is_static: bool = True
    """It supports group.instance.id."""
    leaves_when_stalled: bool = True
    """Without polls it leaves the group by itself, or its session expires."""


CLIENTS: Final[Mapping[str, Abilities]] = {
    "confluent-kafka": Abilities((EAGER, COOPERATIVE, CONSUMER)),
    "kafka-python": Abilities((EAGER, COOPERATIVE)),
    "aiokafka": Abilities((EAGER,)),
    "java": Abilities((EAGER, COOPERATIVE, CONSUMER)),
    # Its heartbeats do not depend on polls: only a rebalance waits, up to its timeout.
    "franz-go": Abilities((EAGER, COOPERATIVE, CONSUMER), leaves_when_stalled=False),
    # Its assignor is its own, so it only shares groups with other kafkajs members. While a batch is
    # processed, its fetches from other brokers continue, and its heartbeats with them.
    "kafkajs": Abilities(
        (EAGER,), follows_patterns=False, is_static=False, leaves_when_stalled=False
    ),
}


class Program(NodeProcess):
    """A client's program, which can run several members of several groups."""

    def __init__(self, node: Node, directory: Path, client: str, command: Sequence[str]) -> None:
        super().__init__(node, directory, command)
        self.client: Final = client

    def request(self, do: str, **given: object) -> Any:
        """Send a command and return the answer; raises ChaosFailed on an error or no answer."""
        self.check_alive()
        process = self._process
        if process is None or process.stdin is None:
            raise ChaosFailed(f"{self.client} is not running")
        process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        process.stdin.flush()
        line = self._read_line(ANSWER_MAX_S)
        if not line:
            raise ChaosFailed(f"{self.client} does not answer to {do}\n{self.tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ChaosFailed(f"{self.client}: {do}: {answer['error']}\n{self.tail()}")
        return answer["ok"]
