"""Fake brokers that serve records of model logs, and do so badly when told."""

from typing import Any

from kits.client.fake_cluster import FakeBroker, FakeCluster
from kits.client.model_log import ModelLog
from kits.rpc.rpc_server import PORT
from millstream.client.fetch.chunks import ReadRange
from millstream.model.ids import Offset, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)


class FetchBroker(FakeBroker):
    """Leads what the cluster's view says, and answers at once also when it has nothing."""

    tells_leader = False
    """Whether an error comes with the leader's name (KIP-951)."""

    def _answer(self, request: Any, scripted: ErrorCode | str) -> Any:
        if not isinstance(request, FetchRequest):
            return super()._answer(request, scripted)
        error = scripted if isinstance(scripted, ErrorCode) else ErrorCode.NONE
        cluster = self.cluster
        assert isinstance(cluster, FetchCluster)
        topics = [
            FetchableTopicResponse(
                topic_id=topic.topic_id,
                partitions=[
                    self._partition(cluster, topic, one, error) for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        endpoints = [
            NodeEndpoint(node_id=one.broker_id, host=one.host, port=PORT)
            for one in cluster.brokers
            if self.tells_leader
        ]
        return FetchResponse(
            responses=topics,
            node_endpoints=endpoints,
            throttle_time_ms=0,
        )

    def _partition(
        self, cluster: "FetchCluster", topic: Any, asked: Any, error: ErrorCode
    ) -> PartitionData:
        index = asked.partition
        found = next(
            (one for one in cluster.view.topics.items() if one[1].topic_id == topic.topic_id), None
        )
        if found is None:
            return PartitionData(partition_index=index, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
        leader, epoch = found[1].leaders[index]
        log = cluster.logs[TopicPartition(found[0], index)]
        if error is ErrorCode.NONE and leader != self.broker_id:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if error is ErrorCode.NONE and not log.start <= asked.fetch_offset <= log.end:
            error = ErrorCode.OFFSET_OUT_OF_RANGE
        if error is not ErrorCode.NONE:
            told = LeaderIdAndEpoch(leader_id=leader, leader_epoch=epoch)
            return PartitionData(
                partition_index=index,
                error_code=error,
                current_leader=told if self.tells_leader else LeaderIdAndEpoch(),
            )
        cut_at = cluster.cut_at.get(asked.last_fetched_epoch)
        if cut_at is not None and cut_at < asked.fetch_offset:
            diverging = EpochEndOffset(epoch=asked.last_fetched_epoch, end_offset=cut_at)
            return PartitionData(partition_index=index, diverging_epoch=diverging)
        records = log.read(
            asked.fetch_offset, asked.partition_max_bytes, until=log.end, at_least_one=True
        )
        return PartitionData(
            partition_index=index,
            high_watermark=log.end,
            last_stable_offset=log.end,
            records=records,
        )


class FetchCluster(FakeCluster):
    """With a log for each partition."""

    def __init__(self, count: int = 3, *, seed: int = 1) -> None:
        super().__init__(count, seed=seed)
        self.brokers = [FetchBroker(self, number + 1) for number in range(count)]
        self.logs: dict[TopicPartition, ModelLog] = {}
        self.cut_at: dict[int, int] = {}
        """By epoch, where the logs were cut."""

    def add_log(self, name: str, partitions: int = 1, *, batches: int = 10) -> None:
        """A batch of two records each."""
        self.add_topic(name, partitions)
        for index in range(partitions):
            log = self.logs[TopicPartition(name, index)] = ModelLog()
            for number in range(batches):
                log.append([b"%02d" % (2 * number), b"%02d" % (2 * number + 1)])

    def fetches(self) -> list[tuple[int, FetchRequest]]:
        return self.asked(FetchRequest)


def whole(
    name: str = "events", index: int = 0, *, start: int = 0, end: int | None = 20
) -> ReadRange:
    return ReadRange(
        TopicPartition(name, index), Offset(start), None if end is None else Offset(end)
    )
