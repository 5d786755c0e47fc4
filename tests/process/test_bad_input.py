"""I-34: whatever bytes come, the broker answers or closes, never dies, never grows past its limits,
and other clients do not notice.
"""

import gzip
import os
import random
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch, produce_request
from millstream.broker.net.admission import ADMINISTRATORS_MAX
from millstream.kernels.compression import Codec
from millstream.testing.record_batches import BatchSpec
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.headers import encode_request_header
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

MIB = 1024 * 1024
FRAME_MAX = 4 * MIB


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    settings = {
        "socket.request.max.bytes": str(FRAME_MAX),
        "connections.max.idle.ms": "60000",
        "max.connections.per.ip": "1500",
        "log.level": "WARN",
    }
    with broker_process(tmp_path_factory.mktemp("bad-input"), settings) as running:
        with running.client() as client:
            client.create_topic("honest")
        yield running


@pytest.fixture(autouse=True)
def other_clients_notice_nothing(broker: BrokerProcess) -> Iterator[None]:
    """One client stays connected over the whole test and is served before and after."""
    with broker.client() as honest:
        check_served(honest)
        yield
        check_served(honest)
    assert broker.is_alive


def check_served(client: WireClient) -> None:
    answer = client.produce("honest", build_batch([(b"k", b"v")]))
    partition = answer.responses[0].partition_responses[0]
    assert partition.error_code == 0
    found = client.fetch("honest", partition.base_offset)
    assert found.responses[0].partitions[0].high_watermark == partition.base_offset + 1


def fetch_request(topic: str) -> FetchRequest:
    """Ten megabytes from the beginning."""
    partition = FetchPartition(partition=0, partition_max_bytes=10 * MIB)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=10 * MIB,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )


def error_of(client: WireClient, batch: bytes | bytearray) -> ErrorCode:
    answer = client.produce("honest", batch)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


# -- frames ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">i", -1),
        struct.pack(">i", -(2**31)),
        struct.pack(">i", 0),
        struct.pack(">i", 7) + b"1234567",
        struct.pack(">i", FRAME_MAX + 1),
        struct.pack(">i", 2**31 - 1),
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        bytes.fromhex("1603010200010001fc0303") + bytes(64),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        bytes(8) + b"\xff" * 64,
    ],
    ids=[
        *("negative", "most negative", "empty", "shorter than a header", "above the limit"),
        *("two gigabytes", "HTTP", "TLS", "SSH", "zero, then noise"),
    ],
)
def test_what_is_no_request_closes_the_connection(broker: BrokerProcess, raw: bytes) -> None:
    with broker.client() as client:
        client.socket.sendall(raw)
        assert client.is_closed_by_peer()


def test_a_claimed_size_is_not_allocated(broker: BrokerProcess) -> None:
    """400 connections claim four megabytes each and send a kilobyte."""
    before = broker.resident_bytes()
    connections = [broker.client() for _ in range(400)]
    try:
        for one in connections:
            one.socket.sendall(struct.pack(">i", FRAME_MAX) + bytes(1020))
        with broker.client() as client:
            check_served(client)
        assert broker.resident_bytes() - before < 60 * MIB
    finally:
        for one in connections:
            one.socket.close()


def test_the_memory_of_large_requests_is_given_back(broker: BrokerProcess) -> None:
    value = os.urandom(900_000)
    with broker.client() as client:
        for _ in range(3):
            assert error_of(client, build_batch([(b"k", value)])) is ErrorCode.NONE
        before = broker.resident_bytes()
        for _ in range(30):
            assert error_of(client, build_batch([(b"k", value)])) is ErrorCode.NONE
        assert broker.resident_bytes() - before < 2 * FRAME_MAX


def test_the_memory_of_connections_that_break_off_is_given_back(broker: BrokerProcess) -> None:
    """60 clients, one after the other, send most of a large request and are gone."""
    unfinished = struct.pack(">i", FRAME_MAX) + bytes(FRAME_MAX - MIB)
    before = broker.resident_bytes()
    for _ in range(60):
        with broker.client() as client:
            client.socket.sendall(unfinished)
    with broker.client() as client:
        check_served(client)
    until(lambda: broker.resident_bytes() - before < 60 * MIB, "it is given back")


@pytest.mark.parametrize("seed", range(5))
def test_random_frames(broker: BrokerProcess, seed: int) -> None:
    """Replay one: pytest tests/process/test_bad_input.py -k "random_frames and SEED"."""
    chance = random.Random(seed)
    for _ in range(60):
        body = chance.randbytes(chance.randrange(400))
        if chance.random() < 0.8:  # a header that leads somewhere
            key = chance.choice([*range(4), *range(10, 70), 74, 75, 1000, -5])
            body = struct.pack(">hhih", key, chance.randrange(-1, 19), 7, -1) + body
        with broker.client() as client:
            client.write_frame(body)
            client.socket.shutdown(socket.SHUT_WR)
            while client.socket.recv(65536):
                pass


def test_a_request_byte_by_byte_is_a_request(broker: BrokerProcess) -> None:
    header = encode_request_header(ApiKey.METADATA, 12, 0, "slow")
    body = header + MetadataRequest(topics=[]).encode(12)
    with broker.client() as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in struct.pack(">i", len(body)) + body:
            client.socket.sendall(bytes([byte]))
        assert client.read(ApiKey.METADATA, 12, 0).brokers[0].node_id == 1


# -- requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "version"), [(77, 0), (4, 0), (-1, 0), (3, 99), (0, 2), (1, 3)])
def test_an_unknown_api_or_version_closes_the_connection(
    broker: BrokerProcess, key: int, version: int
) -> None:
    with broker.client() as client:
        client.write_frame(struct.pack(">hhih", key, version, 1, -1) + bytes(50))
        assert client.is_closed_by_peer()


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    broker: BrokerProcess,
) -> None:
    """KIP-511: the client tries again with a version from this answer, on the same connection."""
    with broker.client() as client:
        client.write_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, 77, 1, -1) + b"\x00noise")
        answer = client.read(ApiKey.API_VERSIONS, 0, 1)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        known = {one.api_key: one for one in answer.api_keys}
        assert known[ApiKey.API_VERSIONS].max_version == 4
        request = ApiVersionsRequest(client_software_name="a", client_software_version="1")
        assert client.send(request, 4).error_code == 0


@pytest.mark.parametrize("count", [2**31 - 1, 2**27, 100_000, -2, -(2**31)])
def test_a_count_beyond_the_request_is_no_request(broker: BrokerProcess, count: int) -> None:
    before = broker.resident_bytes()
    with broker.client() as client:
        client.write_frame(struct.pack(">hhihi", ApiKey.METADATA, 1, 1, -1, count) + bytes(20))
        assert client.is_closed_by_peer()
    assert broker.resident_bytes() - before < 20 * MIB


@pytest.mark.parametrize(
    "tags",
    [
        b"\xff\xff\xff\xff\xff\xff",  # an overlong number of tagged fields
        b"\xff\xff\xff\xff\x0f",  # four thousand million of them
        b"\x02\x05\x01a\x05\x01b",  # the same tag twice
        b"\x02\x06\x01a\x05\x01b",  # in descending order
        b"\x01\x05\x7f",  # longer than the request
    ],
)
def test_bad_tagged_fields_are_no_request(broker: BrokerProcess, tags: bytes) -> None:
    body = MetadataRequest(topics=[]).encode(12)[:-1] + tags
    with broker.client() as client:
        client.write_frame(encode_request_header(ApiKey.METADATA, 12, 1, "x") + body)
        assert client.is_closed_by_peer()


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../../etc/passwd", "a" * 250, "näme", "a\0b", "a b", "a\nb"]
)
def test_odd_topic_names_are_refused_and_touch_nothing(broker: BrokerProcess, name: str) -> None:
    names_before = sorted(os.listdir(broker.directory / "data"))
    with broker.client() as client:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        answer = client.send(CreateTopicsRequest(topics=[topic], timeout_ms=5000), 7)
        assert answer.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        asked = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
        told = client.send(asked, 9).topics[0]
        assert told.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert sorted(os.listdir(broker.directory / "data")) == names_before


def test_a_topic_name_that_is_no_utf8_is_no_request(broker: BrokerProcess) -> None:
    body = struct.pack(">hhihih", ApiKey.METADATA, 1, 1, -1, 1, 2) + b"\xff\xfe"
    with broker.client() as client:
        client.write_frame(body)
        assert client.is_closed_by_peer()


# -- records -----------------------------------------------------------------------------------


def now_ms() -> int:
    return int(time.time() * 1000)


def test_every_changed_byte_of_a_batch_is_refused_or_harmless(broker: BrokerProcess) -> None:
    """The leader epoch and nothing else may differ undetected."""
    good = bytes(build_batch([(b"key", b"value"), (b"k2", b"v2")]))
    free = set(range(12, 16))  # assigned by the broker; a base offset other than 0 is refused
    with broker.client() as client:
        for at in range(len(good)):
            bad = bytearray(good)
            bad[at] ^= 0x41
            code = error_of(client, bytes(bad))
            assert (code is ErrorCode.NONE) == (at in free), (at, code)
            assert code is not ErrorCode.UNKNOWN_SERVER_ERROR, at


def test_a_truncated_batch_is_refused(broker: BrokerProcess) -> None:
    good = bytes(build_batch([(b"key", b"value")]))
    with broker.client() as client:
        for size in range(1, len(good)):
            code = error_of(client, good[:size])
            assert code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR), (size, code)


def bomb(codec: Codec, size: int) -> bytes:
    """A batch of one record whose value is `size` zeros, in very few bytes."""
    batch = build_batch([(b"k", bytes(size))], BatchSpec(codec=codec, timestamp_ms=now_ms()))
    return bytes(batch)


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        (Codec.GZIP, 300 * MIB),
        (Codec.SNAPPY, 70 * MIB),
        (Codec.LZ4, 300 * MIB),
        (Codec.ZSTD, 300 * MIB),
    ],
)
def test_a_decompression_bomb_is_refused_without_being_unpacked(
    broker: BrokerProcess, codec: Codec, size: int
) -> None:
    """Snappy packs twenty to one at best, so its bomb is just above what may be unpacked."""
    small = bomb(codec, size)
    topic = f"bombs-{codec.name}"
    before = broker.resident_bytes()
    with broker.client() as client:
        client.create_topic(topic, max_message_bytes=str(FRAME_MAX - 1000))
        answer = client.produce(topic, small)
    told = answer.responses[0].partition_responses[0]
    assert told.error_code == ErrorCode.MESSAGE_TOO_LARGE, told
    assert broker.resident_bytes() - before < 150 * MIB


def test_gzip_of_gzip_and_members_in_a_row_are_bounded(broker: BrokerProcess) -> None:
    member = gzip.compress(bytes(30 * MIB), 9)
    body = member * 20
    good = bytearray(build_batch([(b"k", b"v")], BatchSpec(codec=Codec.GZIP)))
    batch = bytearray(good[:61]) + body
    batch[8:12] = struct.pack(">i", len(batch) - 12)
    from crc32c import crc32c

    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    with broker.client() as client:
        assert error_of(client, bytes(batch)) not in (
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )


def test_noise_instead_of_compressed_records_is_corrupt(broker: BrokerProcess) -> None:
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        batch = bytearray(build_batch([(b"k", b"v" * 50)], BatchSpec(codec=codec)))
        batch[-14:-9] = b"\xff\x00\xff\x00\xff"
        from crc32c import crc32c

        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        with broker.client() as client:
            code = error_of(client, bytes(batch))
            assert code in (ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD), codec


# -- floods ------------------------------------------------------------------------------------


def test_a_client_that_never_reads_is_stopped_and_does_not_grow_the_broker(
    broker: BrokerProcess,
) -> None:
    """Fetches of a megabyte, one after the other, and the client does not read the answers."""
    with broker.client() as client:
        client.create_topic("wide")
        for _ in range(4):
            client.produce("wide", build_batch([(b"k", os.urandom(900_000))]))
    before = broker.resident_bytes()
    with broker.client() as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        deaf.socket.setblocking(False)
        header = encode_request_header(ApiKey.FETCH, 12, 1, "deaf")
        ask = fetch_request("wide")
        frame = header + ask.encode(12)
        flood = (struct.pack(">i", len(frame)) + frame) * 3000
        sent = 0
        try:
            while sent < len(flood):
                sent += deaf.socket.send(flood[sent:])
        except BlockingIOError:
            pass
        with broker.client() as other:
            for _ in range(20):
                check_served(other)
        assert broker.resident_bytes() - before < 60 * MIB


def test_a_client_that_sends_slowly_and_never_reads_is_stopped_too(broker: BrokerProcess) -> None:
    """I-37. Each request is walked in a wake-up of its own; the answers would be 25 megabytes."""
    with broker.client() as client:
        client.create_topic("many-partitions", 1000)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="many-partitions")])
        client.send(asked, 9)
    before = broker.resident_bytes()
    with broker.client() as deaf, broker.client() as pace:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        for _ in range(900):
            deaf.write(asked, 9)
            pace.send(ApiVersionsRequest(client_software_name="a"), 0)
        assert broker.resident_bytes() - before < 10 * MIB


def test_a_flood_of_pipelined_requests_leaves_others_served(broker: BrokerProcess) -> None:
    header = encode_request_header(ApiKey.METADATA, 12, 1, "flood")
    frame = header + MetadataRequest(topics=None).encode(12)
    flood = (struct.pack(">i", len(frame)) + frame) * 20_000
    with broker.client() as loud, broker.client() as honest:
        loud.socket.setblocking(False)
        took = []
        sent = 0
        for _ in range(40):
            try:
                sent += loud.socket.send(flood[sent:])
                loud.socket.recv(1 << 20)
            except BlockingIOError:
                pass
            begin = time.monotonic()
            check_served(honest)
            took.append(time.monotonic() - begin)
        assert sorted(took)[len(took) // 2] < 1.0
        assert sent > 0


def is_served(broker: BrokerProcess) -> bool:
    with broker.client() as client:
        try:
            return bool(client.send(MetadataRequest(topics=[]), 9).brokers)
        except (EOFError, ConnectionError):
            return False


def test_connections_beyond_the_limit_per_address_are_closed(tmp_path: Path) -> None:
    with broker_process(tmp_path, {"max.connections.per.ip": "5"}) as small:
        held = [small.client() for _ in range(5)]
        administrators = [small.client() for _ in range(ADMINISTRATORS_MAX)]
        for one in [*held, *administrators]:
            one.send(MetadataRequest(topics=[]), 9)
        with small.client() as idle, small.client() as another:
            another.write(MetadataRequest(topics=[]), 9)
            assert another.is_closed_by_peer()
            assert idle.is_closed_by_peer()
        held.pop().socket.close()
        until(lambda: is_served(small), "a connection is let in again")
        for one in administrators:
            one.socket.close()
        for one in held:
            one.socket.close()


def test_beyond_the_limit_of_all_connections_others_are_closed_until_one_ends(
    tmp_path: Path,
) -> None:
    with broker_process(tmp_path, {"max.connections": "3"}) as small:
        held = [small.client() for _ in range(3 + ADMINISTRATORS_MAX)]
        for one in held:
            assert one.send(MetadataRequest(topics=[]), 9).brokers
        with small.client() as another:
            another.write(MetadataRequest(topics=[]), 9)
            assert another.is_closed_by_peer()
        held.pop(0).socket.close()
        until(lambda: is_served(small), "a connection is let in again")
        with small.client() as waiting:
            held.pop(0).socket.close()
            assert waiting.send(MetadataRequest(topics=[]), 9).brokers, "there is room by then"
        for one in held:
            one.socket.close()


def test_idle_and_stalled_connections_are_closed(tmp_path: Path) -> None:
    settings = {"connections.max.idle.ms": "300"}
    with (
        broker_process(tmp_path, settings) as impatient,
        impatient.client() as idle,
        impatient.client() as stalled,
    ):
        stalled.socket.sendall(struct.pack(">i", 500) + b"half of a request")
        assert idle.is_closed_by_peer()
        assert stalled.is_closed_by_peer()


def test_a_client_that_reads_slowly_but_steadily_is_not_idle(tmp_path: Path) -> None:
    settings = {"connections.max.idle.ms": "1000"}
    with broker_process(tmp_path, settings) as impatient, impatient.client() as client:
        client.create_topic("wide", max_message_bytes=str(8 * MIB))
        for _ in range(4):
            client.produce("wide", build_batch([(b"k", os.urandom(2 * MIB))]))
        with impatient.client() as slow:
            slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32768)
            slow.write(fetch_request("wide"), 12)
            taken, begin = 0, time.monotonic()
            while taken < 8 * MIB:
                # Paced by another client's requests for as long as twice the limit.
                is_slow = time.monotonic() - begin < 3.5
                if is_slow:
                    client.send(MetadataRequest(topics=[]), 9)
                piece = slow.socket.recv(256 if is_slow else MIB)
                assert piece, f"closed after {taken} bytes"
                taken += len(piece)


def test_one_setting_asked_for_often_is_told_once(broker: BrokerProcess) -> None:
    wanted = [DescribeConfigsResource(resource_type=4, resource_name="1")] * 2000
    with broker.client() as client:
        told = client.send(DescribeConfigsRequest(resources=wanted), 4)
    assert len(told.results) == 1


def test_it_survives_the_end_of_its_descriptors(tmp_path: Path) -> None:
    import resource

    with broker_process(tmp_path) as running, running.client() as client:
        client.create_topic("honest")
        check_served(client)
        used = len(os.listdir(f"/proc/{running.pid}/fd"))
        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (used + 10, used + 10))
        crowd = []
        try:
            crowd += [running.client() for _ in range(30)]
            check_served(client)
        finally:
            for one in crowd:
                one.socket.close()

        def accepts() -> bool:
            with running.client() as another:
                another.socket.settimeout(2)
                try:
                    return bool(another.send(MetadataRequest(topics=[]), 9).brokers)
                except OSError:
                    return False

        until(accepts, "connections are accepted again")
        check_served(client)


def test_acks_0_with_an_error_closes_the_connection(broker: BrokerProcess) -> None:
    with broker.client() as client:
        client.write(produce_request("no-such-topic-here", build_batch([(b"k", b"v")]), acks=0), 9)
        assert client.is_closed_by_peer()
