"""Brokers on a simulated network that take records: logs shared by all, led by one each."""

from typing import Any

import pyarrow as pa

from kits.client.fake_cluster import FakeBroker, FakeCluster
from kits.client.sim_partition import SimPartition
from kits.rpc.rpc_server import PORT
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from millstream.wire.messages.produce import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)


class ProduceBroker(FakeBroker):
    """`script` holds codes for the next produce requests; STORE_FIRST ones store nevertheless."""

    STORE_FIRST = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    cluster: "ProduceCluster"

    def _answer(self, request: Any, scripted: ErrorCode | str) -> Any:
        error = scripted if isinstance(scripted, ErrorCode) else ErrorCode.NONE
        if isinstance(request, InitProducerIdRequest):
            if error is not ErrorCode.NONE:
                return InitProducerIdResponse(error_code=error)
            self.cluster.ids += 1
            return InitProducerIdResponse(producer_id=self.cluster.ids, producer_epoch=0)
        if isinstance(request, ProduceRequest):
            return self._produce(request, error)
        return super()._answer(request, scripted)

    def _produce(self, request: ProduceRequest, error: ErrorCode) -> ProduceResponse:
        names = {topic.topic_id: name for name, topic in self.cluster.view.topics.items()}
        responses = []
        for topic in request.topic_data:
            name = names.get(topic.topic_id, topic.name)
            told = [
                self._append(name, one.index, bytes(one.records or b""), error)
                for one in topic.partition_data
            ]
            responses.append(
                TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=told)
            )
        endpoints = [
            NodeEndpoint(node_id=one.broker_id, host=one.host, port=PORT)
            for one in self.cluster.brokers
        ]
        return ProduceResponse(
            responses=responses,
            node_endpoints=endpoints if self.cluster.has_hints else [],
            throttle_time_ms=self.cluster.throttle_ms,
        )

    def _append(
        self, name: str, index: int, data: bytes, error: ErrorCode
    ) -> PartitionProduceResponse:
        truth = self.cluster.view.topics.get(name)
        if truth is None:
            return PartitionProduceResponse(index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        leader, epoch = truth.leaders[index]
        if leader != self.broker_id:
            hint = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
            return PartitionProduceResponse(
                index=index,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                current_leader=hint if self.cluster.has_hints else LeaderIdAndEpoch(),
            )
        code, offset = error, -1
        if code is ErrorCode.NONE or code in self.STORE_FIRST:
            stored, offset = self.cluster.log(name, index).append(data)
            if code is ErrorCode.NONE or stored is not ErrorCode.NONE:
                code = stored
        return PartitionProduceResponse(index=index, error_code=code, base_offset=offset)


class ProduceCluster(FakeCluster):
    """Brokers 1 to n."""

    def __init__(self, count: int = 3, *, seed: int = 1, bytes_max: int = 2**31) -> None:
        super().__init__(count, seed=seed)
        self.brokers = [ProduceBroker(self, number + 1) for number in range(count)]
        self.ids = 0
        self.has_hints = True
        self.throttle_ms = 0
        self.bytes_max = bytes_max
        self.logs: dict[tuple[str, int], SimPartition] = {}

    def log(self, name: str, index: int) -> SimPartition:
        if (name, index) not in self.logs:
            self.logs[name, index] = SimPartition(bytes_max=self.bytes_max)
        return self.logs[name, index]

    def stored(self, name: str = "events") -> list[list[int]]:
        """By partition."""
        count = len(self.view.topics[name].leaders)
        return [self.log(name, index).log for index in range(count)]


def numbers(values: list[int], **columns: Any) -> pa.RecordBatch:
    """A batch whose values are numbers, as `SimPartition` reads them."""
    return pa.record_batch({"value": pa.array([b"%d" % one for one in values]), **columns})
