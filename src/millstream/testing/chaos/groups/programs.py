"""Foreign clients as members of groups: their programs in a node, and what each of them can be."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from millstream.testing.chaos.cluster.processes import NodeProcess
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import Node

ANSWER_MAX_S: Final = 90.0
"""The first answer waits for a virtual machine to start on a busy computer."""

EAGER, COOPERATIVE, CONSUMER = "eager", "cooperative", "consumer"


class MemberKind(NamedTuple):
    """A client and the protocol it is a member by."""

    client: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.client}-{self.protocol}"


class Abilities(NamedTuple):
    """What members of a client can do beyond joining and leaving."""

    protocols: tuple[str, ...]
    follows_patterns: bool = True
    """New topics that match are found, not only those that are there at the start."""
    is_static: bool = True
    """It knows group.instance.id."""
    leaves_when_stalled: bool = True
    """Without a poll for long it gives up its membership by itself, or is taken for dead."""


CLIENTS: Final[Mapping[str, Abilities]] = {
    "confluent-kafka": Abilities((EAGER, COOPERATIVE, CONSUMER)),
    "kafka-python": Abilities((EAGER, COOPERATIVE)),
    "aiokafka": Abilities((EAGER,)),
    "java": Abilities((EAGER, COOPERATIVE, CONSUMER)),
    # Its heartbeats do not depend on polls: only a rebalance waits, up to its timeout.
    "franz-go": Abilities((EAGER, COOPERATIVE, CONSUMER), leaves_when_stalled=False),
    # Its assignor is its own, so it shares groups with its like only. While one batch takes its
    # time, its fetches from other brokers go on, and heartbeats with them.
    "kafkajs": Abilities(
        (EAGER,), follows_patterns=False, is_static=False, leaves_when_stalled=False
    ),
}


class Program(NodeProcess):
    """A client's program, which may be several members of several groups."""

    def __init__(self, node: Node, directory: Path, client: str, command: Sequence[str]) -> None:
        super().__init__(node, directory, command)
        self.client: Final = client

    def ask(self, do: str, **given: object) -> Any:
        """Its answer; raises ChaosFailed where it says no, or nothing."""
        self.check_alive()
        process = self._process
        if process is None or process.stdin is None:
            raise ChaosFailed(f"{self.client} is not running")
        process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        process.stdin.flush()
        line = self._line(ANSWER_MAX_S)
        if not line:
            raise ChaosFailed(f"{self.client} does not answer to {do}\n{self.tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ChaosFailed(f"{self.client}: {do}: {answer['error']}\n{self.tail()}")
        return answer["ok"]
