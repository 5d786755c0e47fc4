"""Many of something cheap: pipelines whose answers are never read, connections, half requests."""

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from millstream.testing.chaos.hostile.attack import (
    CHUNK_BYTES,
    POLL_S,
    Attack,
    Connection,
    Scene,
    Send,
    close_all,
    deadline_of,
    frame_of,
    noted,
    open_many,
    request_frame,
    wait_until_s,
    write_rest,
)
from millstream.wire.api_keys import ApiKey
from millstream.wire.headers import encode_request_header
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

HALF_REQUESTS: Final = 30
HALF_BYTES: Final = 20_000_000
CLAIMED_BYTES: Final = 100_000_000
CONNECTIONS: Final = 3_000
HTTP_CONNECTIONS: Final = 64
HTTP_ANSWER_MAX_S: Final = 5.0


def attacks() -> Iterator[Attack]:
    yield Attack("no attack", _nothing)
    for connections in (5, 15, 50):
        yield Attack(
            f"Metadata without reading on {connections} connections",
            partial(_pipeline, _metadata_frame, connections),
        )
    for name, make in (
        ("ApiVersions", _api_versions_frame),
        ("FindCoordinator", _find_coordinator_frame),
        ("ListOffsets", _list_offsets_frame),
        ("Fetch", _fetch_frame),
        ("DescribeCluster", _describe_cluster_frame),
        ("ListGroups", _list_groups_frame),
    ):
        yield Attack(f"{name} without reading on 15 connections", partial(_pipeline, make, 15))
    yield Attack("half-sent requests", _half_sent)
    yield Attack("connections that come and stay", _connections_stay)
    yield Attack("connections that come and go", _connections_go)
    yield Attack("bytes one by one", _byte_by_byte)
    yield Attack("idle HTTP connections", _idle_http)


def _nothing(scene: Scene) -> Send:
    """For comparison: the same measurement of an undisturbed cluster."""
    return lambda: wait_until_s(deadline_of(scene.target))


# -- pipelines ---------------------------------------------------------------------------------


def _metadata_frame(_: Scene) -> bytes:
    """28 bytes, for the metadata of all topics."""
    header = encode_request_header(ApiKey.METADATA, 1, 1, "hostile-10")
    return frame_of(header + struct.pack(">i", -1))


def _api_versions_frame(_: Scene) -> bytes:
    return request_frame(ApiVersionsRequest(), 0)


def _find_coordinator_frame(_: Scene) -> bytes:
    return request_frame(FindCoordinatorRequest(key="hostile"), 2)


def _list_offsets_frame(scene: Scene) -> bytes:
    partitions = [ListOffsetsPartition(partition_index=one, timestamp=-1) for one in range(6)]
    topics = [ListOffsetsTopic(name=scene.target.topic, partitions=partitions)]
    return request_frame(ListOffsetsRequest(topics=topics), 5)


def _fetch_frame(scene: Scene) -> bytes:
    partitions = [FetchPartition(partition=one, partition_max_bytes=1 << 20) for one in range(6)]
    topics = [FetchTopic(topic=scene.target.topic, partitions=partitions)]
    return request_frame(FetchRequest(topics=topics, max_wait_ms=0), 11)


def _describe_cluster_frame(_: Scene) -> bytes:
    return request_frame(DescribeClusterRequest(), 0)


def _list_groups_frame(_: Scene) -> bytes:
    return request_frame(ListGroupsRequest(), 3)


def _pipeline(make: Callable[[Scene], bytes], connections: int, scene: Scene) -> Send:
    """As fast as it is taken on all connections, and not an answer is read."""
    frame = make(scene)
    chunk = frame * max(1, CHUNK_BYTES // len(frame))
    return partial(pump, scene, chunk, scene.target.share_of(connections))


def pump(
    scene: Scene, chunk: bytes, connections: int, *, is_reading: bool = False, address: str = ""
) -> None:
    """Write the chunk again and again to all of them until the time is over."""
    opened = open_many(scene, connections, address=address)
    rest = {one: memoryview(chunk) for one in opened}
    end_s = deadline_of(scene.target)
    for one in opened:
        one.setblocking(False)
    while time.monotonic() < end_s and rest:
        readable, writable, _ = select.select(rest if is_reading else [], rest, [], POLL_S)
        for one in {*readable, *writable}:
            try:
                _write_and_read(scene, rest, one, chunk, is_readable=one in readable)
            except BlockingIOError:
                continue
            except OSError:
                scene.outcome.note("closed by the broker")
                del rest[one]
    close_all(opened)


def _write_and_read(
    scene: Scene,
    rest: dict[socket.socket, memoryview],
    one: socket.socket,
    chunk: bytes,
    *,
    is_readable: bool,
) -> None:
    if is_readable and not one.recv(CHUNK_BYTES):
        raise ConnectionError("closed by the broker")
    sent = one.send(rest[one])
    scene.outcome.note("bytes sent", sent)
    rest[one] = rest[one][sent:] or memoryview(chunk)


# -- connections -------------------------------------------------------------------------------


def _half_sent(scene: Scene) -> Send:
    """Each announces a large request and sends a part of it."""
    data = struct.pack(">i", CLAIMED_BYTES) + encode_request_header(ApiKey.PRODUCE, 9, 1, "h")
    data += bytes(scene.target.share_of(HALF_BYTES))

    def send() -> None:
        opened = open_many(scene, scene.target.share_of(HALF_REQUESTS))
        write_rest(scene, dict.fromkeys(opened, memoryview(data)), "halves sent")
        close_all(opened)

    return send


def _connections_stay(scene: Scene) -> Send:
    def send() -> None:
        opened = open_many(scene, scene.target.share_of(CONNECTIONS))
        scene.outcome.note("connections opened", len(opened))
        wait_until_s(deadline_of(scene.target))
        close_all(opened)

    return send


def _connections_go(scene: Scene) -> Send:
    frame = request_frame(ApiVersionsRequest(), 0)

    def send() -> None:
        end_s = deadline_of(scene.target)
        while time.monotonic() < end_s:
            with noted(scene.outcome), Connection(scene.target.address) as connection:
                connection.send(frame)
                scene.outcome.note("connections opened")

    return send


def _byte_by_byte(scene: Scene) -> Send:
    """Requests that never arrive whole: each byte wakes the broker up."""
    frame = _metadata_frame(scene)

    def send() -> None:
        opened = open_many(scene, scene.target.share_of(200))
        for one in opened:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end_s, at = deadline_of(scene.target), 0
        while time.monotonic() < end_s and opened:
            for one in opened:
                with noted(scene.outcome):
                    scene.outcome.note("bytes sent", one.send(frame[at : at + 1]))
            at = (at + 1) % (len(frame) - 1)
        close_all(opened)

    return send


def _idle_http(scene: Scene) -> Send:
    def send() -> None:
        opened = open_many(scene, HTTP_CONNECTIONS, address=scene.target.metrics)
        end_s = deadline_of(scene.target)
        while time.monotonic() < end_s:
            status = http_status(scene.target.metrics, "/health")
            scene.outcome.note(f"/health: {status}")
            if status != "200":
                scene.outcome.violate(f"/health answered {status}, not 200")
            wait_until_s(time.monotonic() + 0.5)
        close_all(opened)

    return send


def http_status(address: str, path: str) -> str:
    """The status of a GET, or why there was none."""
    try:
        with Connection(address, timeout_s=HTTP_ANSWER_MAX_S) as connection:
            connection.send(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            words = connection.socket.recv(CHUNK_BYTES).split(b" ", 2)
    except OSError as error:
        return type(error).__name__
    return words[1].decode(errors="replace") if len(words) > 1 else "nothing"
