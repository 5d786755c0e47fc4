"""I-37: whatever clients send, a broker's memory stays within a bound, and is free afterwards."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from struct import pack

import pytest

from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch, produce_request
from millstream.kernels.compression import Codec
from millstream.model.limits import MIB
from millstream.testing.record_batches import BatchSpec
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import encode_request_header
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from millstream.wire.schema import Message

BUDGET = 64 * MIB
REQUEST_MAX = 16 * MIB
SLACK = 48 * MIB
"""Copies while buffers grow, and what the allocator keeps for later."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "queued.max.request.bytes": str(BUDGET),
        "socket.request.max.bytes": str(REQUEST_MAX),
        "log.level": "WARN",
    }
    with broker_process(tmp_path_factory.mktemp("bound"), settings) as running:
        with running.client() as client:
            client.create_topic("here")
            client.create_topic("quiet")
            assert produce(client)
        yield running


def produce(client: WireClient) -> bool:
    answer = client.produce("here", build_batch([(b"k", b"x" * 20_000)]))
    return answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def peak_bytes(broker: BrokerProcess) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(broker: BrokerProcess) -> int:
    """Returns what it uses now."""
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")
    return broker.resident_bytes()


def sockets_of(broker: BrokerProcess) -> int:
    """How many it has open."""
    found = 0
    for descriptor in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found += descriptor.readlink().name.startswith("socket:")
    return found


class Attack:
    """Connections that send what the broker takes, and read nothing."""

    def __init__(self, broker: BrokerProcess, count: int, data: bytes) -> None:
        self._stack = ExitStack()
        self._broker = broker
        self._before = sockets_of(broker) + 1  # the client that is served meanwhile
        self.clients = [self._stack.enter_context(broker.client()) for _ in range(count)]
        self._left = dict.fromkeys(self.clients, memoryview(data))
        for client in self.clients:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.socket.setblocking(False)
        self.closed: set[WireClient] = set()

    def send_more(self) -> bool:
        """Whether any of them could."""
        has_sent = False
        for client in self.clients:
            left = self._left[client]
            try:
                is_over = not left or client in self.closed
                size = 0 if is_over else client.socket.send(left[: 4 * MIB])
            except BlockingIOError:
                continue
            except ConnectionError:
                self.closed.add(client)
                continue
            self._left[client] = left[size:]
            has_sent = has_sent or size > 0
        return has_sent

    def end(self) -> None:
        """Also for the broker, which does not read from those that wait: they are reset."""
        for client in self.clients:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        self._stack.close()
        until(lambda: sockets_of(self._broker) <= self._before, "the broker closes them, too")


def run(broker: BrokerProcess, attack: Attack) -> None:
    """Until all of it was sent, or the broker has had enough; others are served meanwhile."""
    with broker.client() as honest:
        quiet = 0
        while quiet < 20:
            quiet = 0 if attack.send_more() else quiet + 1
            assert honest.send(ApiVersionsRequest(), 0).error_code == 0
            assert produce(honest)
        attack.end()


def check_bound(broker: BrokerProcess, before: int, bound: int = BUDGET) -> None:
    peak = peak_bytes(broker) - before
    assert peak < bound + SLACK, f"{peak / MIB:.0f} MiB more than before"
    until(
        lambda: broker.resident_bytes() - before < SLACK,
        f"the memory is free again ({(broker.resident_bytes() - before) / MIB:.0f} MiB)",
    )


def test_unfinished_requests(broker: BrokerProcess) -> None:
    before = forget_peak(broker)
    data = (REQUEST_MAX - 4).to_bytes(4, "big") + bytes(REQUEST_MAX - MIB)
    run(broker, Attack(broker, 12, data))
    check_bound(broker, before)


def frame_of(request: Message, version: int) -> bytes:
    body = encode_request_header(request.API_KEY, version, 1, "attacker") + request.encode(version)
    return len(body).to_bytes(4, "big") + body


def test_answers_that_are_not_taken(broker: BrokerProcess) -> None:
    before = forget_peak(broker)
    topics = [MetadataRequestTopic(name=f"{'t' * 200}-{number}") for number in range(900)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    run(broker, Attack(broker, 120, frame_of(request, 8) * 12))
    check_bound(broker, before)


def test_requests_of_very_many_items(broker: BrokerProcess) -> None:
    before = forget_peak(broker)
    topics = [MetadataRequestTopic(name=f"{number}") for number in range(50_000)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    run(broker, Attack(broker, 12, frame_of(request, 8)))
    check_bound(broker, before)


def test_batches_that_decompress_to_a_lot(broker: BrokerProcess) -> None:
    before = forget_peak(broker)
    with ExitStack() as stack:
        clients = [stack.enter_context(broker.client()) for _ in range(12)]
        spec = BatchSpec(codec=Codec.ZSTD, timestamp_ms=int(time.time() * 1000))
        request = produce_request("here", build_batch([(b"k", bytes(60_000_000))], spec))
        for client in clients:
            client.write(request, 9)
        for client in clients:
            client.read(request.API_KEY, 9)
    check_bound(broker, before, BUDGET + 2 * 64 * MIB)


def endless_fetch(partitions: int) -> FetchRequest:
    """One that waits for days."""
    one = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=2**31 - 1,
        min_bytes=1,
        max_bytes=1_000,
        session_epoch=-1,
        topics=[FetchTopic(topic="quiet", partitions=[one] * partitions)],
    )


def test_fetches_that_wait_shut_nobody_out(broker: BrokerProcess) -> None:
    """A megabyte of them, which could have taken more than the budget while they were read."""
    before = forget_peak(broker)
    with ExitStack() as stack:
        for count in (8_000, 8_000, 8_000, *[990] * 15, *[150] * 40):
            client = stack.enter_context(broker.client())
            client.write(endless_fetch(count), 11)
            with broker.client() as honest:
                answer = honest.produce("here", build_batch([(b"k", b"x" * 300_000)]))
                assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    check_bound(broker, before)


def test_what_waits_for_a_client_that_is_gone_is_released(broker: BrokerProcess) -> None:
    """A megabyte of answers behind one that never comes: nothing is read from it any more."""
    sockets = sockets_of(broker)
    topics = [MetadataRequestTopic(name=f"{'t' * 200}-{number}") for number in range(900)]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    for _ in range(10):
        with broker.client() as client:
            client.write(endless_fetch(1), 11)
            for _ in range(10):
                client.write(request, 8)
    until(lambda: sockets_of(broker) <= sockets, "the broker closes them, too")


def test_large_requests_whose_connections_stay(broker: BrokerProcess) -> None:
    """Their buffers do not: each was served."""
    before = forget_peak(broker)
    with ExitStack() as stack:
        for _ in range(30):
            client = stack.enter_context(broker.client())
            client.write_frame(
                encode_request_header(ApiKey.API_VERSIONS, 0, 1, "c") + bytes(14 * MIB)
            )
        check_bound(broker, before)


def test_a_produce_to_very_many_partitions_is_served(broker: BrokerProcess) -> None:
    """Its records are not taken for items of the request."""
    data = [PartitionProduceData(index=index, records=bytes(700)) for index in range(1_001)]
    topic = TopicProduceData(name="nowhere", partition_data=data)
    request = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[topic])
    with broker.client() as client:
        answer = client.send(request, 9)
    assert len(answer.responses[0].partition_responses) == 1_001
