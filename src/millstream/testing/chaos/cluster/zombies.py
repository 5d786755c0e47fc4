"""Writes to a former leader: it may refuse or not answer, but never acknowledge and lose them.

librdkafka switches to the new leader as soon as it sees one, so it would never try. These records
go straight to the old one: over a connection from before it was paused, or while it is
cut off and does not know. Each is part of the history: if acknowledged, it must be in the log in
the end.
"""

import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from millstream.testing.chaos.broker.client import read_answer, send_request
from millstream.testing.chaos.cluster.processes import BROKER_PORT, BrokerProcess
from millstream.testing.chaos.cluster.scene import ClusterScene
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

ACKS_TIMEOUT_MS: Final = 2_000
ANSWER_MAX_S: Final = 10.0
"""Longer than brokers wait for acks: a broker that can answer has answered by then."""
PRODUCE_VERSION: Final = 9


class Zombie:
    """Connections to a broker that were opened while it led; each carries one write."""

    def __init__(self, scene: ClusterScene, broker: BrokerProcess) -> None:
        self._scene = scene
        self._broker = broker
        self._connections: dict[int, socket.socket] = {}
        self._under_way: dict[int, tuple[str, ProduceRequest]] = {}

    def connect(self, partitions: Iterable[int]) -> None:
        """Connect while the broker still leads."""
        for partition in partitions:
            with suppress(OSError):
                self._connections[partition] = self._scene.client.connect(
                    self._broker.node.address, BROKER_PORT
                )

    def write(self) -> int:
        """Send one record to every partition; return how many were sent."""
        for partition, connection in self._connections.items():
            # A name that no earlier zombie has used.
            lane = f"zombie-{self._broker.broker_id}-{time.monotonic_ns()}"
            topic = self._scene.load.topic
            line = {"t": "send", "lane": lane, "n": 0, "topic": topic, "p": partition, "v": lane}
            self._scene.load.lines.take_line(line)
            request = _produce(topic, partition, lane.encode())
            with suppress(OSError):
                send_request(connection, request, PRODUCE_VERSION)
                self._under_way[partition] = (lane, request)
        return len(self._under_way)

    def collect(self) -> tuple[int, int]:
        """Read the responses; return how many writes were acknowledged, and how many were not."""
        acknowledged = refused = 0
        deadline_s = time.monotonic() + ANSWER_MAX_S
        for partition, (lane, request) in self._under_way.items():
            if self._is_acknowledged(partition, lane, request, deadline_s):
                acknowledged += 1
            else:
                refused += 1
        for connection in self._connections.values():
            connection.close()
        return acknowledged, refused

    def _is_acknowledged(
        self, partition: int, lane: str, request: ProduceRequest, deadline_s: float
    ) -> bool:
        connection = self._connections[partition]
        connection.settimeout(max(0.05, deadline_s - time.monotonic()))
        try:
            answer = read_answer(connection, request, PRODUCE_VERSION)
        except OSError:
            return False
        response = answer.responses[0].partition_responses[0]
        if ErrorCode(response.error_code) is not ErrorCode.NONE:
            return False
        line = {"t": "ok", "lane": lane, "n": 0, "offset": response.base_offset}
        self._scene.load.lines.take_line({**line, "at": time.monotonic()})
        return True


def _produce(topic: str, partition: int, value: bytes) -> ProduceRequest:
    now_ms = int(time.time() * 1000)
    batch = bytes(build_batch([(None, value)], BatchSpec(timestamp_ms=now_ms)))
    data = PartitionProduceData(index=partition, records=batch)
    return ProduceRequest(
        acks=-1,
        timeout_ms=ACKS_TIMEOUT_MS,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
