"""Blocking requests to either system: create and delete topics, and frames for the C generators.

An address may name several brokers, with commas between: a cluster. Then topics have a replica on
each of them, and records go to the partition's leader.
"""

import socket
import struct
import time
import uuid
from typing import Any, NamedTuple

from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.catalogue import response_type
from millstream.wire.headers import (
    encode_request_header,
    encode_response_header,
    response_header_version,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

CREATE_TOPICS_VERSION = 7
DELETE_TOPICS_VERSION = 6
METADATA_VERSION = 12
PRODUCE_VERSION = 13
"""What the newest Java client sends: topics by id."""
CLIENT_ID = "bench"
TIMEOUT_S = 30.0
CREATE_TIMEOUT_MS = 60_000
IN_SYNC_MIN = 2
"""Of topics in a cluster."""


class Topic(NamedTuple):
    """A topic as its system describes it."""

    name: str
    topic_id: uuid.UUID
    partitions: int


def connect(address: str, *, timeout_s: float = TIMEOUT_S) -> socket.socket:
    """Connect to the first broker of the address list."""
    host, _, port = brokers_of(address)[0].rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=timeout_s)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def brokers_of(address: str) -> list[str]:
    return address.split(",")


def frame_of(request: Any, version: int) -> bytes:
    """The request with its size in front, correlation id 0."""
    header = encode_request_header(request.API_KEY, version, 0, CLIENT_ID)
    body: bytes = header + request.encode(version)
    return struct.pack(">i", len(body)) + body


def exchange(connection: socket.socket, frame: bytes) -> bytes:
    """One request out, one answer in, without its size."""
    connection.sendall(frame)
    size = struct.unpack(">i", _exactly(connection, 4))[0]
    return _exactly(connection, size)


def send_and_receive(
    address: str, request: Any, version: int, *, timeout_s: float = TIMEOUT_S
) -> Any:
    """Send one request on a new connection and return the response."""
    with connect(address, timeout_s=timeout_s) as connection:
        answer = exchange(connection, frame_of(request, version))
    start = 4 + response_header_version(request.API_KEY, version)
    return response_type(request.API_KEY).decode(memoryview(answer)[start:], version)


def create_topic(address: str, partitions: int, configs: dict[str, str] | None = None) -> Topic:
    """A topic with a new name; returns when produce requests to it are answered without error."""
    name = f"bench-{uuid.uuid4().hex[:12]}"
    replicas = len(brokers_of(address))
    if replicas > 1:
        configs = {"min.insync.replicas": str(IN_SYNC_MIN), **(configs or {})}
    request = create_request(name, partitions, configs, replication_factor=replicas)
    answer = send_and_receive(address, request, CREATE_TOPICS_VERSION)
    result = answer.topics[0]
    if result.error_code:
        raise RuntimeError(f"{address}: topic not created: {result.error_code}")
    topic = Topic(name, result.topic_id, partitions)
    wait_until_served(address, topic)
    return topic


def create_request(
    name: str,
    partitions: int,
    configs: dict[str, str] | None = None,
    *,
    replication_factor: int = 1,
) -> CreateTopicsRequest:
    settings = [CreatableTopicConfig(name=key, value=text) for key, text in (configs or {}).items()]
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs=settings,
    )
    return CreateTopicsRequest(topics=[wanted], timeout_ms=CREATE_TIMEOUT_MS)


def wait_until_served(address: str, topic: Topic) -> None:
    """Wait until every partition accepts a record: a new topic's leader may not know it yet."""
    deadline = time.monotonic() + TIMEOUT_S
    for index in range(topic.partitions):
        while not takes_record(address, topic, index):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{address}: {topic.name} is not served")


def takes_record(address: str, topic: Topic, index: int, *, timeout_s: float = TIMEOUT_S) -> bool:
    leader = leader_address(address, topic, index, timeout_s=timeout_s)
    if leader is None:
        return False
    answer = send_and_receive(
        leader, produce_request(topic, index), PRODUCE_VERSION, timeout_s=timeout_s
    )
    return not answer.responses[0].partition_responses[0].error_code


def leader_address(
    address: str, topic: Topic, index: int, *, timeout_s: float = TIMEOUT_S
) -> str | None:
    """The address of the partition's leader; None without one."""
    if len(brokers_of(address)) == 1:
        return address
    described = metadata(address, [topic.name], timeout_s=timeout_s)
    addresses = {one.node_id: f"{one.host}:{one.port}" for one in described.brokers}
    for one in described.topics[0].partitions:
        if one.partition_index == index:
            return addresses.get(one.leader_id)
    return None


def metadata(address: str, topics: list[str], *, timeout_s: float = TIMEOUT_S) -> MetadataResponse:
    """Metadata from the first broker of the address list."""
    named = [MetadataRequestTopic(name=name) for name in topics]
    request = MetadataRequest(topics=named, allow_auto_topic_creation=False)
    answer: MetadataResponse = send_and_receive(
        address, request, METADATA_VERSION, timeout_s=timeout_s
    )
    return answer


def delete_topics(address: str, topics: list[Topic]) -> None:
    named = [DeleteTopicState(name=topic.name) for topic in topics]
    send_and_receive(
        address, DeleteTopicsRequest(topics=named, timeout_ms=60_000), DELETE_TOPICS_VERSION
    )


def produce_request(topic: Topic, index: int, *, value_bytes: int = 100) -> ProduceRequest:
    """One record, acks=all."""
    data = PartitionProduceData(index=index, records=_one_record(value_bytes))
    of_topic = TopicProduceData(topic_id=topic.topic_id, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[of_topic])


def produce_request_by_name(name: str, index: int) -> ProduceRequest:
    """The same for versions before topic ids."""
    data = PartitionProduceData(index=index, records=_one_record(100))
    of_topic = TopicProduceData(name=name, partition_data=[data])
    return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[of_topic])


def _one_record(value_bytes: int) -> bytes:
    spec = BatchSpec(timestamp_ms=int(time.time() * 1000))
    return bytes(build_batch([(None, b"x" * value_bytes)], spec))


def produce_frame(topic: Topic, index: int = 0) -> bytes:
    return frame_of(produce_request(topic, index), PRODUCE_VERSION)


def error_position() -> int:
    """Where an answer to `produce_frame` has its error code, counted from behind the size."""
    first, second = (produce_answer(code) for code in (0, 0x0101))
    return next(at for at, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1])


def produce_answer(error_code: int) -> bytes:
    """A broker's response to `produce_frame`, correlation id 0, without its size."""
    partition = PartitionProduceResponse(index=0, error_code=error_code)
    of_topic = TopicProduceResponse(topic_id=uuid.UUID(int=1), partition_responses=[partition])
    header = encode_response_header(ProduceResponse.API_KEY, PRODUCE_VERSION, 0)
    return header + ProduceResponse(responses=[of_topic]).encode(PRODUCE_VERSION)


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionError("closed in the middle of an answer")
        parts += part
    return bytes(parts)
