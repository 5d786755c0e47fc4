"""A blocking client of one connection that sends exactly the bytes a test wants."""

import socket
import struct
from types import TracebackType
from typing import Any, Self, TypeVar

from millstream.testing.record_batches import build_batch
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import response_type
from millstream.wire.headers import encode_request_header, response_header_version
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

R = TypeVar("R")
TIMEOUT_S = 20.0


class WireClient:
    """`with WireClient("127.0.0.1:9092") as client: client.send(request, version)`."""

    def __init__(self, bootstrap_servers: str) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=TIMEOUT_S)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    # -- whole messages --------------------------------------------------------------------

    def send(self, request: Any, version: int) -> Any:
        """One request and its answer."""
        self.write(request, version)
        return self.read(request.API_KEY, version)

    def write(self, request: Any, version: int) -> int:
        """Send without waiting; returns the correlation id."""
        self._correlation_id += 1
        header = encode_request_header(
            request.API_KEY, version, self._correlation_id, "wire-client"
        )
        self.write_frame(header + request.encode(version))
        return self._correlation_id

    def read(self, key: ApiKey, version: int, correlation_id: int | None = None) -> Any:
        """The next answer, which must be for the last request or the given one."""
        frame = self.read_frame()
        (got,) = struct.unpack_from(">i", frame)
        assert got == (self._correlation_id if correlation_id is None else correlation_id)
        skip = 5 if response_header_version(key, version) == 1 else 4
        return response_type(key).decode(memoryview(frame)[skip:], version)

    # -- bytes -----------------------------------------------------------------------------

    def write_frame(self, body: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(body)) + body)

    def read_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._read_exactly(4))
        return self._read_exactly(size)

    def is_closed_by_peer(self) -> bool:
        """Wait for the end of the connection; data before it is an unexpected answer."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise EOFError(f"closed after {len(data)} of {size} bytes")
            data += chunk
        return data

    # -- the usual things ------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, **configs: str) -> CreateTopicsResponse:
        """Configuration keys with underscores for dots."""
        from millstream.wire.messages.create_topics import CreatableTopicConfig

        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=1,
            configs=[
                CreatableTopicConfig(name=key.replace("_", "."), value=value)
                for key, value in configs.items()
            ],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=10_000)
        response: CreateTopicsResponse = self.send(request, 7)
        assert response.topics[0].error_code == 0, response.topics[0].error_message
        return response

    def produce(
        self,
        topic: str,
        batch: bytes | bytearray,
        *,
        partition: int = 0,
        acks: int = -1,
        version: int = 9,
    ) -> ProduceResponse:
        request = produce_request(topic, batch, partition=partition, acks=acks)
        response: ProduceResponse = self.send(request, version)
        return response

    def fetch(
        self,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        max_wait_ms: int = 0,
        max_bytes: int = 50_000_000,
        version: int = 12,
    ) -> FetchResponse:
        request = FetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
            topics=[
                FetchTopic(
                    topic=topic,
                    partitions=[
                        FetchPartition(
                            partition=partition,
                            fetch_offset=offset,
                            partition_max_bytes=50_000_000,
                        )
                    ],
                )
            ],
        )
        response: FetchResponse = self.send(request, version)
        return response


def produce_request(
    topic: str, batch: bytes | bytearray, *, partition: int = 0, acks: int = -1
) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic,
                partition_data=[PartitionProduceData(index=partition, records=bytes(batch))],
            )
        ],
    )


__all__ = ["WireClient", "build_batch", "produce_request"]
