"""What the coordination service holds of a cluster, read as an operator would: node by node.

It does not use the controller's own decoders, so a controller that writes nonsense which only it
can read is found out. `TreeShadow` follows the keeper change by change.
"""

import json
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from millstream.coordination.keeper.changes import (
    Change,
    CloseSession,
    CreateNode,
    DeleteNode,
    SetNode,
    Txn,
)
from millstream.coordination.keeper.state import Node
from millstream.testing.history.cluster_views import (
    NO_LEADER,
    CommittedPartition,
    CommittedState,
    PartitionKey,
)

CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKERS: Final = "/brokers/ids/"
TOPICS: Final = "/brokers/topics/"
TOPIC_CONFIGS: Final = "/config/topics/"
KNOWN_BROKERS: Final = "/millstream/brokers/"
_STATE: Final = re.compile(r"^/brokers/topics/([^/]+)/partitions/(\d+)/state$")
_TOPIC: Final = re.compile(r"^/brokers/topics/([^/]+)$")

MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


class ShadowNode(NamedTuple):
    """A node as far as it matters here."""

    data: bytes
    version: int
    czxid: int
    owner: int


class NodeStep(NamedTuple):
    """One change of a node; None where it did not exist, or no longer does."""

    path: str
    before: ShadowNode | None
    after: ShadowNode | None


class TreeStep(NamedTuple):
    """One transaction, or all unobserved ones together."""

    zxid: int
    session_id: int
    """0: several transactions, of which only the outcome is known."""
    nodes: list[NodeStep]


class TreeShadow:
    """The keeper's tree at its last durable transaction."""

    def __init__(self) -> None:
        self.nodes: dict[str, ShadowNode] = {}
        self.zxid = 0
        self._committed: CommittedState | None = None

    def apply(self, txn: Txn) -> TreeStep:
        """Follow one transaction."""
        steps = [step for change in txn.changes for step in self._apply(change, txn)]
        self.zxid = txn.zxid
        self._committed = None
        return TreeStep(txn.zxid, txn.session_id, steps)

    def _apply(self, change: Change, txn: Txn) -> list[NodeStep]:
        nodes = self.nodes
        match change:
            case CreateNode(path, data, _, is_ephemeral):
                owner = txn.session_id if is_ephemeral else 0
                return [self._put(path, ShadowNode(data or b"", 0, txn.zxid, owner))]
            case SetNode(path, data):
                was = nodes[path]
                now = was._replace(data=data or b"", version=was.version + 1)
                return [self._put(path, now)]
            case DeleteNode(path):
                return [NodeStep(path, nodes.pop(path, None), None)]
            case CloseSession():
                mine = [path for path, node in nodes.items() if node.owner == txn.session_id]
                return [NodeStep(path, nodes.pop(path), None) for path in mine]
            case _:
                return []

    def _put(self, path: str, node: ShadowNode) -> NodeStep:
        was = self.nodes.get(path)
        self.nodes[path] = node
        return NodeStep(path, was, node)

    def follow(self, nodes: Mapping[str, Node], zxid: int) -> TreeStep:
        """The tree of a restarted keeper, which may have changes that were never reported.

        They are returned as one step without a session, in the order of each node's last change.
        """
        found = {
            path: ShadowNode(node.data or b"", node.version, node.czxid, node.owner)
            for path, node in nodes.items()
        }
        changed = [path for path in found if self.nodes.get(path) != found[path]]
        changed.sort(key=lambda path: (nodes[path].mzxid, path))
        gone = [path for path in self.nodes if path not in found]
        steps = [NodeStep(path, self.nodes[path], None) for path in gone]
        steps += [NodeStep(path, self.nodes.get(path), found[path]) for path in changed]
        self.nodes, self.zxid, self._committed = found, zxid, None
        return TreeStep(zxid, 0, steps)

    # -- reading ---------------------------------------------------------------------------

    @property
    def controller_epoch(self) -> int:
        node = self.nodes.get(CONTROLLER_EPOCH)
        return int(node.data or b"0") if node is not None else 0

    @property
    def controller_session(self) -> int:
        node = self.nodes.get(CONTROLLER)
        return node.owner if node is not None else 0

    def committed(self) -> CommittedState:
        """Everything that is decided."""
        if self._committed is None:
            self._committed = self._read()
        return self._committed

    def _read(self) -> CommittedState:
        partitions = {}
        for path in list(self.nodes):
            found = _STATE.match(path)
            if found is None:
                continue
            one = self.partition(found[1], int(found[2]))
            if one is not None:
                partitions[one.key] = one
        controller = self.nodes.get(CONTROLLER)
        return CommittedState(
            partitions,
            {broker: node.czxid for broker, node in self._below(BROKERS)},
            {broker: epoch_in(node.data) for broker, node in self._below(KNOWN_BROKERS)},
            json.loads(controller.data)["brokerid"] if controller is not None else NO_LEADER,
            self.controller_epoch,
        )

    def _below(self, prefix: str) -> Iterator[tuple[int, ShadowNode]]:
        for path, node in self.nodes.items():
            name = path[len(prefix) :]
            if path.startswith(prefix) and name.isdigit():
                yield int(name), node

    def partition(self, topic: str, index: int) -> CommittedPartition | None:
        """As it is now; None without the topic or the state."""
        node = self.nodes.get(f"{TOPICS}{topic}/partitions/{index}/state")
        return None if node is None else self.partition_in(topic, index, node)

    def partition_in(self, topic: str, index: int, node: ShadowNode) -> CommittedPartition | None:
        """As a state node says, which may be an older one."""
        described = self.topic(topic)
        replicas = described.get("partitions", {}).get(str(index)) if described else None
        if described is None or replicas is None:
            return None
        state = json.loads(node.data)
        return CommittedPartition(
            PartitionKey(topic, topic_id_in(described), index),
            tuple(replicas),
            state["leader"],
            state["leader_epoch"],
            tuple(state["isr"]),
            tuple(state.get("elr", ())),
            state.get("last_known_leader", NO_LEADER),
            state["controller_epoch"],
            node.version,
            int(self.config(topic).get(MIN_IN_SYNC, "1")),
            tuple(state.get("lost", ())),
        )

    def topic(self, name: str) -> dict[str, Any] | None:
        node = self.nodes.get(TOPICS + name)
        return None if node is None else dict(json.loads(node.data))

    def config(self, topic: str) -> dict[str, str]:
        """A topic's own settings."""
        node = self.nodes.get(TOPIC_CONFIGS + topic)
        if node is None or not node.data:
            return {}
        found = json.loads(node.data)
        return dict(found.get("config", found))


def parse_state_path(path: str) -> tuple[str, int] | None:
    """The partition whose state node this is."""
    found = _STATE.match(path)
    return (found[1], int(found[2])) if found is not None else None


def topic_id_in(described: Mapping[str, Any]) -> str:
    """As UUIDs are written; Kafka's nodes have them in base 64."""
    stored = str(described.get("topic_id", ""))
    return str(UUID(bytes=urlsafe_b64decode(stored + "=="))) if len(stored) == 22 else stored


def epoch_in(data: bytes) -> int:
    """A broker epoch, bare or in a document."""
    found = json.loads(data or b"-1")
    if isinstance(found, dict):
        found = found.get("epoch", found.get("broker_epoch", -1))
    return int(found)
