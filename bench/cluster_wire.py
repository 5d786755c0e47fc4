"""Blocking requests for clusters: leaders, in-sync replicas, reassignments."""

import time
from collections.abc import Callable
from typing import NamedTuple

from bench.broker_wire import (
    CREATE_TIMEOUT_MS,
    CREATE_TOPICS_VERSION,
    TIMEOUT_S,
    Topic,
    brokers_of,
    metadata,
    send_and_receive,
    wait_until_served,
)
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)

REASSIGN_VERSION = 0
POLL_INTERVAL_S = 0.02


class PartitionView(NamedTuple):
    """A partition's state as one broker reports it."""

    leader: int
    replicas: frozenset[int]
    isr: frozenset[int]

    @property
    def is_in_sync(self) -> bool:
        return self.leader >= 0 and self.replicas == self.isr


def view_of(address: str, topic: Topic) -> dict[int, PartitionView]:
    """All partitions, as the first broker of the address list reports them."""
    described = metadata(address, [topic.name]).topics[0]
    return {
        one.partition_index: PartitionView(
            one.leader_id, frozenset(one.replica_nodes), frozenset(one.isr_nodes)
        )
        for one in described.partitions
    }


def wait_for(condition: Callable[[], bool], what: str, *, timeout_s: float = TIMEOUT_S) -> None:
    """Poll until the condition holds; an error of a broker means that it does not."""
    deadline = time.monotonic() + timeout_s
    while not _holds(condition):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not in {timeout_s:.0f} s")
        time.sleep(POLL_INTERVAL_S)


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except OSError:
        return False


def wait_in_sync(address: str, topic: Topic, *, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until all listed brokers report that all partitions are led and in sync."""
    for broker in brokers_of(address):

        def is_in_sync(broker: str = broker) -> bool:
            found = view_of(broker, topic)
            return len(found) == topic.partitions and all(one.is_in_sync for one in found.values())

        wait_for(is_in_sync, f"{broker}: {topic.name} is in sync", timeout_s=timeout_s)


def create_on(address: str, name: str, replicas: list[list[int]]) -> Topic:
    """Create a topic with the given replicas."""
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in enumerate(replicas)
    ]
    wanted = CreatableTopic(
        name=name, num_partitions=-1, replication_factor=-1, assignments=assignments
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=CREATE_TIMEOUT_MS)
    result = send_and_receive(address, request, CREATE_TOPICS_VERSION).topics[0]
    if result.error_code:
        raise RuntimeError(f"{address}: topic not created: {result.error_code}")
    topic = Topic(name, result.topic_id, len(replicas))
    wait_until_served(address, topic)
    return topic


def reassign(address: str, topic: Topic, replicas: list[list[int]]) -> None:
    """Start a reassignment; return when it is accepted, not when it is done."""
    moved = [
        ReassignablePartition(partition_index=index, replicas=brokers)
        for index, brokers in enumerate(replicas)
    ]
    wanted = ReassignableTopic(name=topic.name, partitions=moved)
    request = AlterPartitionReassignmentsRequest(topics=[wanted])
    answer = send_and_receive(address, request, REASSIGN_VERSION)
    codes = [one.error_code for of in answer.responses for one in of.partitions]
    if answer.error_code or any(codes):
        raise RuntimeError(f"{address}: not reassigned: {answer.error_code} {codes}")
