"""Commits per second: one offset each, acknowledged when it is committed, over raw sockets."""

import time
import uuid
from typing import Final

from bench.broker_cells import QUICK, Done, Load, compare, cost_row, speed_row
from bench.broker_generators import run
from bench.broker_systems import System, Systems
from bench.broker_wire import Topic, create_topic, delete_topics, frame_of, send_and_receive
from bench.measure import Row
from millstream.wire.headers import encode_response_header
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

VERSION: Final = 9
SHAPES: Final = [(1, 1), (10, 1), (50, 1)]
"""Connections and requests in flight: a consumer waits for one commit before the next."""
SECONDS: Final = 1.5 if QUICK else 3.0
GROUPS: Final = 100
FIND_VERSION: Final = 4
COMMITTED_MAX_S: Final = 30.0
NAME_LENGTH: Final = len("bench-") + 12


def measure(systems: Systems) -> list[Row]:
    rows: list[Row] = []
    for connections, in_flight in SHAPES:
        found = compare(commits_load(connections, in_flight), systems)
        identity = f"groups.commits.{connections}x{in_flight}"
        what = f"commits of one offset, {connections} connections"
        rows.append(speed_row(f"{identity}.speed", f"{what}, commits/s", found, at_least=None))
        rows.append(cost_row(f"{identity}.cpu", f"{what}, CPU us/commit", found, at_most=None))
    return rows


def commits_load(connections: int, in_flight: int) -> Load:
    """Each run has a topic and groups of its own."""
    return Load(
        lambda system: create_topic(system.address, 1),
        lambda system, topic: commit(system, topic, connections=connections, in_flight=in_flight),
        lambda system, topic: delete_topics(system.address, [topic]),
    )


def commit(system: System, topic: Topic, *, connections: int, in_flight: int) -> Done:
    """Commits of groups without members, as from consumers with assigned partitions."""
    prefix = uuid.uuid4().hex[:8]
    requests = [commit_request(f"{prefix}-{n}", topic.name, {0: n}) for n in range(GROUPS)]
    for request in requests:  # so that the offsets topic exists, and every group is known
        wait_until_committed(system, request)
    host, _, port = system.address.rpartition(":")
    figures = run(
        "requests",
        host,
        port,
        connections,
        in_flight,
        SECONDS,
        error_position(),
        stdin=b"".join(frame_of(request, VERSION) for request in requests),
    )
    return Done(figures["requests"], figures["seconds"], figures["requests"] / 1e6)


def commit_request(group: str, topic: str, offsets: dict[int, int]) -> OffsetCommitRequest:
    parts = [
        OffsetCommitRequestPartition(
            partition_index=index, committed_offset=offset, committed_metadata=""
        )
        for index, offset in offsets.items()
    ]
    of_topic = OffsetCommitRequestTopic(name=topic, partitions=parts)
    return OffsetCommitRequest(group_id=group, topics=[of_topic])


def wait_until_committed(system: System, request: OffsetCommitRequest) -> None:
    """FindCoordinator creates the offsets topic; it may not exist yet."""
    find = FindCoordinatorRequest(key_type=0, coordinator_keys=[request.group_id])
    deadline_s = time.perf_counter() + COMMITTED_MAX_S
    while time.perf_counter() < deadline_s:
        if send_and_receive(system.address, find, FIND_VERSION).coordinators[0].error_code:
            continue
        answer = send_and_receive(system.address, request, VERSION)
        if not any(part.error_code for topic in answer.topics for part in topic.partitions):
            return
    raise TimeoutError(f"{system.name} takes no commit")


def error_position() -> int:
    """The position of the error code in a response, counted after the size."""
    first, second = (_answer(code) for code in (0, 0x0101))
    return next(at for at, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1])


def _answer(error_code: int) -> bytes:
    part = OffsetCommitResponsePartition(partition_index=0, error_code=error_code)
    topic = OffsetCommitResponseTopic(name="b" * NAME_LENGTH, partitions=[part])
    header = encode_response_header(OffsetCommitResponse.API_KEY, VERSION, 0)
    return header + OffsetCommitResponse(topics=[topic]).encode(VERSION)
