"""When a compacted topic is cleaned: in Apache Kafka and here, with the same settings.

Neither waits for the timer of the checkpoints: only the cleaner's own back-off counts.
"""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.kernels import batches
from millstream.testing.broker_thread import BrokerThread
from millstream.testing.peers.kafka import ApacheKafka
from millstream.testing.record_batches import BatchSpec, build_batch, read_records
from millstream.wire.errors import ErrorCode

pytestmark = pytest.mark.interop

BACKOFF_MS = 1_000
CLEANED_WITHIN_S = 20.0
"""Many back-offs, on a machine that is slow; a third of the default between two checkpoints."""
SETTINGS = {"log.cleaner.backoff.ms": str(BACKOFF_MS)}
LAG_MS = 100
STEP_MS = 10_000
"""From one batch to the next, by the records' own time: a segment is rolled with each."""

TOPICS = {
    "ratio": {"segment_ms": f"{LAG_MS}", "min_cleanable_dirty_ratio": "0.01"},
    "lag": {"max_compaction_lag_ms": f"{LAG_MS}", "min_cleanable_dirty_ratio": "1.0"},
    "both": {
        "segment_ms": f"{LAG_MS}",
        "max_compaction_lag_ms": f"{LAG_MS}",
        "min_cleanable_dirty_ratio": "0.01",
    },
    "never": {"segment_ms": f"{LAG_MS}", "min_cleanable_dirty_ratio": "1.0"},
    "idle": {
        "segment_ms": f"{LAG_MS}",
        "max_compaction_lag_ms": f"{LAG_MS}",
        "min_cleanable_dirty_ratio": "0.01",
    },
}
NOT_YET = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""Of a topic that was just created."""
CLEANED = ("ratio", "lag", "both")


@pytest.fixture(scope="module", params=["kafka", "millstream"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    """Where it is reached, and what its files are below."""
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "kafka":
        jars = request.getfixturevalue("jars")
        with ApacheKafka(directory, jars=jars, settings=SETTINGS) as kafka:
            yield kafka.bootstrap_servers, kafka.data_directory
    else:
        with BrokerThread({**SETTINGS, "log.level": "ERROR"}, directory=directory) as ours:
            yield ours.bootstrap_servers, directory


def put(client: WireClient, topic: str, at_ms: int, *pairs: tuple[bytes, bytes]) -> None:
    batch = build_batch(list(pairs), BatchSpec(timestamp_ms=at_ms))

    def is_taken() -> bool:
        code = ErrorCode(
            client.produce(topic, batch).responses[0].partition_responses[0].error_code
        )
        assert code in (ErrorCode.NONE, *NOT_YET), code
        return code is ErrorCode.NONE

    until(is_taken, f"{topic} has a leader")


def values(client: WireClient, topic: str) -> list[bytes | None]:
    """All that a reader from the beginning gets."""
    found: list[bytes | None] = []
    offset = 0
    while True:
        part = client.fetch(topic, offset).responses[0].partitions[0]
        assert part.error_code == 0, part
        data = bytes(part.records or b"")
        rows, end, _ = batches.walk(data, 0, len(data), check_crc=True, size_max=len(data) + 1)
        if not rows:
            return found
        found += [one.value for one in read_records(data[:end]) if one.offset >= offset]
        offset = rows[batches.LAST_OFFSET - batches.ROW_FIELDS] + 1


def has(client: WireClient, topic: str, wanted: list[bytes | None]) -> bool:
    return values(client, topic) == wanted


def write(client: WireClient, topic: str, start_ms: int) -> None:
    """A key three times and another once; each batch but the first rolls a segment."""
    put(client, topic, start_ms, (b"a", b"1"), (b"a", b"2"))
    if topic != "idle":
        put(client, topic, start_ms + STEP_MS, (b"a", b"3"))
        put(client, topic, start_ms + 2 * STEP_MS, (b"b", b"4"))


def test_a_compacted_topic_is_cleaned_within_the_back_off(broker: tuple[str, Path]) -> None:
    servers, files = broker
    start_ms = int(time.time() * 1000) - 5 * STEP_MS
    with WireClient(servers) as client:
        for topic, configs in TOPICS.items():
            client.create_topic(topic, 1, cleanup_policy="compact", **configs)
            write(client, topic, start_ms)
        written = time.monotonic()
        for topic in CLEANED:
            until(
                partial(has, client, topic, [b"3", b"4"]),
                f"{topic} is cleaned",
                timeout_s=written + CLEANED_WITHIN_S - time.monotonic(),
            )
        # Once more, so that the cleaner has looked at all of them again.
        put(client, "both", start_ms + 3 * STEP_MS, (b"b", b"5"))
        put(client, "both", start_ms + 4 * STEP_MS, (b"c", b"6"))
        until(
            partial(has, client, "both", [b"3", b"5", b"6"]),
            "what came later is cleaned",
            timeout_s=CLEANED_WITHIN_S,
        )
        assert values(client, "never") == [b"1", b"2", b"3", b"4"], "the ratio must be passed"
        assert values(client, "idle") == [b"1", b"2"], "its segment is active"
    (idle,) = files.rglob("idle-0")
    assert [one.name for one in idle.glob("*.log")] == [f"{0:020}.log"], "no append, no roll"
