"""What only brokers may say, said by a client: each must be refused, and change nothing."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from uuid import UUID

from millstream.testing.chaos.hostile.attack import (
    CHUNK_BYTES,
    Attack,
    Connection,
    Scene,
    Send,
    noted,
    request_frame,
)
from millstream.testing.chaos.hostile.floods import pump
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_partition import (
    AlterPartitionRequest,
    BrokerState,
)
from millstream.wire.messages.alter_partition import (
    RequestPartitionData as IsrPartition,
)
from millstream.wire.messages.alter_partition import (
    RequestTopicData as IsrTopic,
)
from millstream.wire.messages.assign_replicas_to_dirs import (
    AssignReplicasToDirsRequest,
    RequestDirectoryData,
    RequestPartitionData,
    RequestTopicData,
)
from millstream.wire.messages.broker_heartbeat import BrokerHeartbeatRequest
from millstream.wire.messages.envelope import EnvelopeRequest
from millstream.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ReplicaState,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.pull_metadata import PullMetadataRequest
from millstream.wire.schema import Struct

REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_EPOCH: Final = -1
_LOST_DIRECTORY: Final = UUID(int=1)
"""Kafka's id for a directory that is lost."""


def attacks() -> Iterator[Attack]:
    for name, make in (
        ("PullMetadata", _pull_metadata),
        ("Fetch with a replica id", _fetch_old),
        ("Fetch with a replica state", _fetch_new),
        ("AlterPartition", _alter_partition),
        ("Envelope", _envelope),
        ("AssignReplicasToDirs", _assign),
        ("BrokerHeartbeat", _heartbeat),
    ):
        yield Attack(f"{name} from a client", partial(_pose, make), is_for_cluster=True)
    yield Attack("malformed Envelopes", _malformed_envelopes)


class _Known:
    """What the attacker could find out about the cluster."""

    def __init__(self, scene: Scene) -> None:
        self.target: Final = scene.target
        self.controller = scene.target.victim
        self.topic_id = UUID(int=0)
        self.partitions: list[Any] = []
        self.epochs: dict[int, int] = {}
        with noted(scene.outcome), Connection(scene.target.address) as connection:
            self._read_metadata(connection)
        with noted(scene.outcome), Connection(self.controller_address) as connection:
            answer = connection.call(PullMetadataRequest(broker_id=1), 0)
            self.epochs = {one.broker_id: one.epoch for one in answer.brokers or []}

    @property
    def controller_address(self) -> str:
        return self.target.brokers[self.controller]

    def _read_metadata(self, connection: Connection) -> None:
        topics = [MetadataRequestTopic(name=self.target.topic)]
        answer = connection.call(MetadataRequest(topics=topics), 10)
        if str(answer.controller_id) in self.target.brokers:
            self.controller = str(answer.controller_id)
        self.topic_id = answer.topics[0].topic_id
        self.partitions = answer.topics[0].partitions

    def epoch_of(self, broker_id: int) -> int:
        return self.epochs.get(broker_id, NO_EPOCH)


Posed = tuple[Any, int, str]
"""A request, its version, and the address."""


def _pull_metadata(known: _Known) -> Posed:
    return PullMetadataRequest(broker_id=1), 0, known.controller_address


def _heartbeat(known: _Known) -> Posed:
    """Shuts a live broker down: its leaderships go to others."""
    victim = int(known.target.victim)
    epoch = known.epoch_of(victim)
    request = BrokerHeartbeatRequest(broker_id=victim, broker_epoch=epoch, want_shut_down=True)
    return request, 1, known.controller_address


def _assign(known: _Known) -> Posed:
    victim = int(known.target.victim)
    parts = [RequestPartitionData(partition_index=one.partition_index) for one in known.partitions]
    topics = [RequestTopicData(topic_id=known.topic_id, partitions=parts)]
    request = AssignReplicasToDirsRequest(
        broker_id=victim,
        broker_epoch=known.epoch_of(victim),
        directories=[RequestDirectoryData(id=_LOST_DIRECTORY, topics=topics)],
    )
    return request, 0, known.controller_address


def _alter_partition(known: _Known) -> Posed:
    """Takes everybody but the leader out of the in-sync replicas."""
    leader = known.partitions[0].leader_id
    state = BrokerState(broker_id=leader, broker_epoch=known.epoch_of(leader))
    part = IsrPartition(
        partition_index=0,
        leader_epoch=known.partitions[0].leader_epoch,
        new_isr_with_epochs=[state],
    )
    request = AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=known.epoch_of(leader),
        topics=[IsrTopic(topic_id=known.topic_id, partitions=[part])],
    )
    return request, 3, known.controller_address


def _envelope(known: _Known) -> Posed:
    inner = request_frame(MetadataRequest(topics=[]), 9)[4:]
    request = EnvelopeRequest(
        request_data=inner, request_principal=None, client_host_address=b"\x7f\0\0\1"
    )
    return request, 0, known.controller_address


def _fetched(known: _Known) -> tuple[int, str, FetchPartition]:
    """A follower of the first partition, its leader's address, and what it would fetch."""
    one = known.partitions[0]
    follower = next(id_ for id_ in one.replica_nodes if id_ != one.leader_id)
    part = FetchPartition(partition=0, fetch_offset=10**9, partition_max_bytes=1_000)
    return follower, known.target.brokers[str(one.leader_id)], part


def _fetch_old(known: _Known) -> Posed:
    """An offset far ahead: as if the follower had everything."""
    follower, address, part = _fetched(known)
    topics = [FetchTopic(topic=known.target.topic, partitions=[part])]
    return FetchRequest(replica_id=follower, topics=topics, max_wait_ms=10), 12, address


def _fetch_new(known: _Known) -> Posed:
    follower, address, part = _fetched(known)
    state = ReplicaState(replica_id=follower, replica_epoch=known.epoch_of(follower))
    topics = [FetchTopic(topic_id=known.topic_id, partitions=[part])]
    return FetchRequest(replica_state=state, topics=topics, max_wait_ms=10), 16, address


def _pose(make: Any, scene: Scene) -> Send:
    def send() -> None:
        known = _Known(scene)
        request, version, address = make(known)
        name = type(request).__name__.removesuffix("Request")
        with noted(scene.outcome), Connection(address) as connection:
            codes = error_codes(connection.call(request, version))
            for code in codes:
                scene.outcome.note(f"{name}: {code.name}")
            if set(codes) != {REFUSED}:
                names = ", ".join(sorted({one.name for one in codes})) or "no error"
                scene.outcome.violate(f"{name} from a client: {names}, not {REFUSED.name}")

    return send


def error_codes(answer: Struct) -> list[ErrorCode]:
    """All codes in an answer; one for the whole stands for those of its parts."""
    own = getattr(answer, "error_code", 0)
    if own:
        return [ErrorCode(own)]
    inner = []
    for field in answer.FIELDS:
        value = getattr(answer, field.name)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Struct):
                inner += error_codes(one)
    return inner or ([ErrorCode.NONE] if hasattr(answer, "error_code") else [])


def _malformed_envelopes(scene: Scene) -> Send:
    """Each was a line in the log."""
    request = EnvelopeRequest(
        request_data=b"\xff" * 12, request_principal=None, client_host_address=b"\x7f\0\0\1"
    )
    frame = request_frame(request, 0)
    chunk = frame * (CHUNK_BYTES // len(frame))
    # Others than the controller refuse an Envelope before its content matters.
    address = _Known(scene).controller_address
    return partial(pump, scene, chunk, 2, is_reading=True, address=address)
