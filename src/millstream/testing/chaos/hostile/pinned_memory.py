"""Memory that a client pins: what it leaves behind, and what waits for what never comes."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from millstream.model.limits import MIB
from millstream.testing.chaos.hostile.attack import (
    Attack,
    Connection,
    Scene,
    Send,
    close_all,
    deadline_of,
    noted,
    open_many,
    raw_frame,
    request_frame,
    reset_all,
    wait_until_s,
    write_rest,
)
from millstream.testing.chaos.hostile.large_requests import coordinator_of
from millstream.wire.api_keys import ApiKey
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

JOINS: Final = 10
JOIN_BYTES: Final = 40_000_000
SESSION_MS: Final = 6_000
"""The smallest session of a member: what it pinned must be gone soon after."""
FETCH_SESSIONS: Final = 20
SESSION_PARTITIONS: Final = 200_000
FOREVER: Final = 2**31 - 1
"""Milliseconds, and bytes: the largest that a Fetch can wait for."""
LARGE_FETCHES: Final = 10
LARGE_FETCH_PARTITIONS: Final = 100_000
SMALL_FETCH_PARTITIONS: Final = (990, 500, 150)
"""Each size fills what the one before left."""
SMALL_FETCH_CONNECTIONS: Final = 50
SMALL_FETCHES: Final = 20
"""Of each connection."""
BODIES: Final = 30
BODY_BYTES: Final = 40 * MIB
LATE_CONNECTIONS: Final = 200
LATE_ANSWERS: Final = 4
LATE_TOPICS: Final = 4_000


def attacks() -> Iterator[Attack]:
    yield Attack("40 MB JoinGroups", _large_joins, after_max_s=60.0)
    yield Attack("fetch sessions of what is not there", _fetch_sessions)
    yield Attack("fetches that wait for weeks", _waiting_fetches)
    yield Attack("large requests behind fetches that wait", _bodies)
    yield Attack("answers behind fetches that wait", _late_answers)


def _large_joins(scene: Scene) -> Send:
    metadata = bytes(scene.target.share_of(JOIN_BYTES))
    frames = []
    for number in range(scene.target.share_of(JOINS)):
        request = JoinGroupRequest(
            group_id=f"hostile-{number}",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=SESSION_MS,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        frames.append(request_frame(request, 2))
    addresses = [coordinator_of(scene, f"hostile-{number}") for number in range(len(frames))]

    def send() -> None:
        opened = []
        for frame, address in zip(frames, addresses, strict=True):
            with noted(scene.outcome):
                connection = Connection(address)
                opened.append(connection.socket)
                connection.send(frame)
                scene.outcome.note("joins sent")
        wait_until_s(deadline_of(scene.target))
        close_all(opened)

    return send


def _fetch_sessions(scene: Scene) -> Send:
    partitions: list[Any] = [
        FetchPartition(partition=number, partition_max_bytes=1_000)
        for number in range(scene.target.share_of(SESSION_PARTITIONS))
    ]
    topics = [FetchTopic(topic="not-there", partitions=partitions)]
    frame = request_frame(FetchRequest(topics=topics, max_wait_ms=10, session_epoch=0), 12)

    def send() -> None:
        for _ in range(scene.target.share_of(FETCH_SESSIONS)):
            with noted(scene.outcome), Connection(scene.target.address) as connection:
                connection.send(frame)
                connection.read_frame()
                scene.outcome.note("answers")

    return send


# -- what waits --------------------------------------------------------------------------------


def _waiting_fetches(scene: Scene) -> Send:
    """Each is large, or one of very many, and none is ever answered."""
    large = [_waiting_fetch(scene, LARGE_FETCH_PARTITIONS)] * scene.target.share_of(LARGE_FETCHES)
    connections = scene.target.share_of(SMALL_FETCH_CONNECTIONS)
    smaller = [
        chunk
        for size in SMALL_FETCH_PARTITIONS
        for chunk in [_waiting_fetch(scene, size) * SMALL_FETCHES] * connections
    ]
    return partial(_send_and_stay, scene, [*large, *smaller])


def _bodies(scene: Scene) -> Send:
    """Large requests, whole, while others wait for memory."""
    fetches = [_waiting_fetch(scene, LARGE_FETCH_PARTITIONS)] * scene.target.share_of(LARGE_FETCHES)
    body = raw_frame(ApiKey.API_VERSIONS, 0, bytes(scene.target.share_of(BODY_BYTES)))
    return partial(_send_and_stay, scene, [*fetches, *[body] * scene.target.share_of(BODIES)])


def _late_answers(scene: Scene) -> Send:
    """Answers that are ready, behind one that never is."""
    names = [f"{'t' * 200}-{number}" for number in range(scene.target.share_of(LATE_TOPICS))]
    topics = [MetadataRequestTopic(name=one) for one in names]
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    chunk = _waiting_fetch(scene, 1) + request_frame(request, 8) * LATE_ANSWERS
    return partial(_send_and_stay, scene, [chunk] * scene.target.share_of(LATE_CONNECTIONS))


def _led_partition(scene: Scene) -> int:
    """Led by the broker that is attacked: any other is answered at once."""
    topics = [MetadataRequestTopic(name=scene.target.topic)]
    with Connection(scene.target.address) as connection:
        answer = connection.call(MetadataRequest(topics=topics), 10)
    leaders = {str(one.leader_id): one.partition_index for one in answer.topics[0].partitions}
    return int(leaders[scene.target.victim])


def _waiting_fetch(scene: Scene, partitions: int) -> bytes:
    """One partition, named again and again, for more bytes than it will ever have."""
    one = FetchPartition(partition=_led_partition(scene), partition_max_bytes=1)
    topics = [FetchTopic(topic=scene.target.topic, partitions=[one] * partitions)]
    request = FetchRequest(
        topics=topics, max_wait_ms=FOREVER, min_bytes=FOREVER, max_bytes=FOREVER, session_epoch=-1
    )
    return request_frame(request, 11)


def _send_and_stay(scene: Scene, chunks: list[bytes]) -> None:
    """Each on a connection of its own, as far as it is taken, and nothing is read."""
    opened = open_many(scene, len(chunks))
    rest = {one: memoryview(chunk) for one, chunk in zip(opened, chunks, strict=False)}
    write_rest(scene, rest, "sent whole")
    wait_until_s(deadline_of(scene.target))
    reset_all(opened)
