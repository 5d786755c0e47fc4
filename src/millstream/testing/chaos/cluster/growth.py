"""A cluster that an operator grows and shrinks under load; its clients notice nothing.

A broker is added, partitions are moved to it, another one is drained and removed. Moves are
requested over the wire as by Kafka's own tool (AlterPartitionReassignments) and followed by
ListPartitionReassignments.
"""

from collections.abc import Mapping
from typing import Any, Final

from millstream.testing.chaos.cluster.scene import ClusterScene
from millstream.testing.chaos.cluster.view import METADATA_VERSION, read_view
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.wait_until import wait_until
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
)
from millstream.wire.messages.metadata import MetadataRequest

MOVE_MAX_S: Final = 120.0
"""For all partitions at once: they hold some megabytes each."""
JOIN_MAX_S: Final = 30.0

Assignment = Mapping[str, Mapping[int, list[int]]]
"""Replicas of every partition of every topic."""


class Growth:
    """Adds and removes brokers."""

    def __init__(self, scene: ClusterScene) -> None:
        self._scene = scene

    def add(self) -> int:
        """Start a new broker with a new id; return when all the others know it."""
        broker_id = max(self._scene.brokers) + 1
        self._scene.add_broker(broker_id).start()
        topic = self._scene.load.topic

        def is_known() -> bool:
            self._scene.check_alive()
            views = [read_view(self._scene.observer, one, topic) for one in self._scene.up()]
            return all(one is not None and broker_id in one.brokers for one in views)

        wait_until(is_known, f"all know broker {broker_id}", timeout_s=JOIN_MAX_S, pause_s=0.1)
        return broker_id

    def give_work(self, newcomer: int) -> int:
        """Move one replica of every second partition to it; return how many it has then."""
        target: dict[str, dict[int, list[int]]] = {}
        for topic, partitions in self.assignment().items():
            for number in sorted(partitions)[::2]:
                replicas = list(partitions[number])
                replicas[number % len(replicas)] = newcomer
                target.setdefault(topic, {})[number] = replicas
        self.move(target)
        return sum(len(partitions) for partitions in target.values())

    def drain(self, leaving: int) -> None:
        """Move all its replicas to brokers that have none of that partition."""
        target: dict[str, dict[int, list[int]]] = {}
        for topic, partitions in self.assignment().items():
            for number, replicas in partitions.items():
                if leaving not in replicas:
                    continue
                free = [one for one in sorted(self._scene.brokers) if one not in replicas]
                if not free:
                    raise ChaosFailed(f"no broker could take {topic}-{number}")
                replacement = free[number % len(free)]
                new = [replacement if one == leaving else one for one in replicas]
                target.setdefault(topic, {})[number] = new
        self.move(target)

    def remove(self, leaving: int) -> None:
        """Stop it and forget it. Raises ChaosFailed when it still had replicas."""
        for topic, partitions in self.assignment().items():
            if any(leaving in replicas for replicas in partitions.values()):
                raise ChaosFailed(f"broker {leaving} still has replicas of {topic}")
        self._scene.brokers[leaving].stop()
        del self._scene.brokers[leaving]

    def grow_and_shrink(self, leaving: int) -> int:
        """Do all of the above while records are acknowledged; return the new broker's id."""
        load = self._scene.load
        newcomer = self.add()
        self.give_work(newcomer)
        load.wait_for(1, "with the new broker")
        self.drain(leaving)
        self.remove(leaving)
        self._scene.wait_healthy()
        load.wait_for(1, "without the old one")
        return newcomer

    # -- over the wire ---------------------------------------------------------------------

    def assignment(self) -> Assignment:
        """The replicas of all topics."""
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = self._scene.administer(request, METADATA_VERSION, lambda _: ErrorCode.NONE)
        return {
            topic.name: {one.partition_index: list(one.replica_nodes) for one in topic.partitions}
            for topic in answer.topics
        }

    def move(self, target: Assignment) -> None:
        """Reassign, and return when it is done. Raises ChaosFailed."""
        topics = [
            ReassignableTopic(
                name=topic,
                partitions=[
                    ReassignablePartition(partition_index=number, replicas=replicas)
                    for number, replicas in partitions.items()
                ],
            )
            for topic, partitions in target.items()
        ]
        request = AlterPartitionReassignmentsRequest(topics=topics, timeout_ms=10_000)
        self._scene.administer(request, 0, _first_refusal)
        wait_until(lambda: self._has_moved(target), "moves end", timeout_s=MOVE_MAX_S, pause_s=0.2)

    def _has_moved(self, target: Assignment) -> bool:
        self._scene.check_alive()
        self._scene.load.take()
        request = ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000)
        answer = self._scene.administer(request, 0, lambda found: found.error_code)
        if answer.topics:
            return False
        now = self.assignment()
        return all(
            now[topic][number] == replicas
            for topic, partitions in target.items()
            for number, replicas in partitions.items()
        )


def _first_refusal(answer: Any) -> int:
    codes = [one.error_code for topic in answer.responses for one in topic.partitions]
    refused = [code for code in (answer.error_code, *codes) if code]
    return refused[0] if refused else 0
