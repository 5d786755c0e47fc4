"""Segments of a real cluster that are cut or zeroed while in use: never sent, and mended.

One cluster for all of it: each story breaks other topics.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.process.up_kit import PARTITIONS, Cluster, cluster_up
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

RECORDS = 300
BATCHES = 5
TICK_NS = 50_000_000
"""Times of changes are that coarse at most."""
Damage = Callable[[Path], None]


def zeroed(path: Path) -> None:
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(size // 4)
        file.write(bytes(size - size // 4))


def zeroed_inside(path: Path) -> None:
    """Inside a batch: its header, and all others, are as they were."""
    with path.open("r+b") as file:
        file.seek(100)
        file.write(bytes(20))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 4)


def cut_and_grown(path: Path) -> None:
    """Full of zeros that were never written: what was sent as records before."""
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("damaged") / "data"
    with cluster_up(data, "--brokers", "3", "--port", "0") as (_, running):
        yield running


def segment_of(cluster: Cluster, broker: int, topic: str, partition: int) -> Path:
    (found,) = (cluster.data / f"broker-{broker}").rglob(f"{topic}-{partition}/*.log")
    return found


def lines_of(cluster: Cluster, message: str, topic: str) -> list[dict[str, Any]]:
    lines = (cluster.data.parent / "stderr").read_text().splitlines()
    return [json.loads(one) for one in lines if message in one and topic in one]


def fill(cluster: Cluster, topic: str) -> set[bytes]:
    cluster.create(topic)
    cluster.in_sync(topic, 3)
    acknowledged: set[bytes] = set()
    for start in range(0, RECORDS, RECORDS // BATCHES):
        acknowledged |= cluster.produce(topic, range(start, start + RECORDS // BATCHES))
    assert len(acknowledged) == RECORDS
    return acknowledged


def fetched(cluster: Cluster, broker: int, topic: str) -> tuple[int, bytes]:
    """Of its first partition, from this broker, whether it leads or follows: error and records."""
    found = cluster.admin.list_topics(timeout=5).brokers[broker]
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
        rack_id="near it",
    )
    with WireClient(f"{found.host}:{found.port}") as client:
        part = client.send(request, 12).responses[0].partitions[0]
    return part.error_code, bytes(part.records or b"")


def assert_mended(cluster: Cluster, topic: str, victim: int, expected: bytes) -> None:
    """Offline, begun again, in sync again, and with the same bytes as before."""
    replaced = "replaced a failed log"
    until(lambda: lines_of(cluster, replaced, topic), "the log begins again", timeout_s=20)
    assert [one["node"] for one in lines_of(cluster, replaced, topic)] == [victim]
    cluster.in_sync(topic, 3)
    until(lambda: fetched(cluster, victim, topic) == (0, expected), "it has everything again")


@pytest.mark.parametrize("damage", [zeroed, zeroed_inside, cut, cut_and_grown])
def test_leader_with_a_damaged_segment_is_replaced_and_mended(
    cluster: Cluster, damage: Damage
) -> None:
    topic = f"leader-{damage.__name__}"
    acknowledged = fill(cluster, topic)
    victim = cluster.partitions(topic)[0].leader
    _, expected = fetched(cluster, victim, topic)
    segment = segment_of(cluster, victim, topic, 0)
    until(lambda: time.time_ns() - segment.stat().st_mtime_ns > TICK_NS, "the next write is later")
    damage(segment)
    assert fetched(cluster, victim, topic) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert sorted(cluster.consume(topic, RECORDS)) == sorted(acknowledged), "from another leader"
    assert_mended(cluster, topic, victim, expected)


@pytest.mark.parametrize("damage", [zeroed, cut])
def test_follower_with_a_damaged_segment_is_mended(cluster: Cluster, damage: Damage) -> None:
    """Consumers may read from it, too (KIP-392)."""
    topic = f"follower-{damage.__name__}"
    fill(cluster, topic)
    one = cluster.partitions(topic)[0]
    victim = next(broker for broker in one.replicas if broker != one.leader)
    until(lambda: fetched(cluster, victim, topic)[1], "it knows what is committed")
    _, expected = fetched(cluster, one.leader, topic)
    damage(segment_of(cluster, victim, topic, 0))
    assert fetched(cluster, victim, topic) == (ErrorCode.KAFKA_STORAGE_ERROR, b"")
    assert_mended(cluster, topic, victim, expected)


def test_append_behind_a_cut_is_not_acknowledged_by_that_follower(cluster: Cluster) -> None:
    """It would leave zeros in the middle of the segment."""
    topic = "appended"
    fill(cluster, topic)
    one = cluster.partitions(topic)[0]
    victim = next(broker for broker in one.replicas if broker != one.leader)
    cut(segment_of(cluster, victim, topic, 0))
    assert len(cluster.produce(topic, range(RECORDS, RECORDS + PARTITIONS))) == PARTITIONS
    _, expected = fetched(cluster, one.leader, topic)
    assert_mended(cluster, topic, victim, expected)
