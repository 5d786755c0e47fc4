"""Topic keys that decide what becomes of a produced batch, changed while the broker runs.

Each as the topic's own setting and as the broker's default; removed, the former behaviour is back.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.broker.topic_keys_kit import QUICK, Bench, Lever, effect_of, running_bench, wall_ms
from kits.process.wire_client import WireClient, build_batch
from millstream.controller import documents
from millstream.kernels.compression import Codec
from millstream.model.config.resources import ResourceType
from millstream.testing.broker_thread import BrokerThread
from millstream.testing.record_batches import BatchSpec
from millstream.wire.errors import ErrorCode

HOUR_MS = 3_600_000
CHANCE = random.Random(1)
WORDS = [CHANCE.randbytes(CHANCE.randrange(2, 9)) for _ in range(2000)]
TEXT = b" ".join(CHANCE.choice(WORDS[: CHANCE.randrange(1, 2000)]) for _ in range(8000))
"""Repeats itself as text does: every level has something to find."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running_bench() as running:
        yield running


@pytest.fixture(params=["topic", "default"])
def lever(request: pytest.FixtureRequest, bench: Bench) -> Lever:
    return Lever(bench, is_default=request.param == "default")


# -- time --------------------------------------------------------------------------------------


@effect_of("message.timestamp.type")
def test_log_append_time_is_told_and_stored(bench: Bench, lever: Lever) -> None:
    topic = bench.topic()
    sent_ms = wall_ms() - HOUR_MS
    before = bench.produce(topic, timestamp_ms=sent_ms)
    with lever.turned(topic, "message.timestamp.type", "LogAppendTime"):
        began_ms = wall_ms()
        stamped = bench.produce(topic, timestamp_ms=sent_ms)
        ended_ms = wall_ms()
    after = bench.produce(topic, timestamp_ms=sent_ms)
    assert (before.log_append_time_ms, after.log_append_time_ms) == (-1, -1)
    assert began_ms <= stamped.log_append_time_ms <= ended_ms
    batches = bench.stored(topic)
    assert [one.is_append_time for one in batches] == [False, True, False]
    times = [sent_ms, stamped.log_append_time_ms, sent_ms]
    assert [one.max_timestamp_ms for one in batches] == times
    assert [record.timestamp_ms for record in bench.records(topic)] == times


@effect_of("message.timestamp.before.max.ms")
def test_records_from_too_long_ago_are_refused(bench: Bench, lever: Lever) -> None:
    topic = bench.topic()
    pairs = [(b"k", b"v")]
    for age_ms in (HOUR_MS, 2 * 60_000):
        assert bench.code(topic, pairs, wall_ms() - age_ms) is ErrorCode.NONE
    with lever.turned(topic, "message.timestamp.before.max.ms", "600000"):
        assert bench.code(topic, pairs, wall_ms() - HOUR_MS) is ErrorCode.INVALID_TIMESTAMP
        assert bench.code(topic, pairs, wall_ms() - 2 * 60_000) is ErrorCode.NONE
    assert bench.code(topic, pairs, wall_ms() - HOUR_MS) is ErrorCode.NONE


@effect_of("message.timestamp.after.max.ms")
def test_records_from_too_far_ahead_are_refused(bench: Bench, lever: Lever) -> None:
    """An hour is Kafka's default; a longer time lets more in, a shorter one less."""
    topic = bench.topic()
    pairs = [(b"k", b"v")]
    soon, late = HOUR_MS // 2, 2 * HOUR_MS
    assert bench.code(topic, pairs, wall_ms() + soon) is ErrorCode.NONE
    assert bench.code(topic, pairs, wall_ms() + late) is ErrorCode.INVALID_TIMESTAMP
    with lever.turned(topic, "message.timestamp.after.max.ms", "60000"):
        assert bench.code(topic, pairs, wall_ms() + soon) is ErrorCode.INVALID_TIMESTAMP
    with lever.turned(topic, "message.timestamp.after.max.ms", str(3 * HOUR_MS)):
        assert bench.code(topic, pairs, wall_ms() + late) is ErrorCode.NONE
    assert bench.code(topic, pairs, wall_ms() + soon) is ErrorCode.NONE
    assert bench.code(topic, pairs, wall_ms() + late) is ErrorCode.INVALID_TIMESTAMP


# -- compression -------------------------------------------------------------------------------


@effect_of("compression.type")
@pytest.mark.parametrize("sent", [Codec.NONE, Codec.LZ4])
def test_batches_are_stored_in_the_topics_codec(bench: Bench, lever: Lever, sent: Codec) -> None:
    """`producer` is the default: as it came."""
    topic = bench.topic()
    pairs = [(b"k", TEXT)]
    wanted = {
        "gzip": Codec.GZIP,
        "snappy": Codec.SNAPPY,
        "lz4": Codec.LZ4,
        "zstd": Codec.ZSTD,
        "uncompressed": Codec.NONE,
        "producer": sent,
    }
    assert bench.produce(topic, pairs, codec=sent).error_code == 0
    for name in wanted:
        with lever.turned(topic, "compression.type", name):
            assert bench.produce(topic, pairs, codec=sent).error_code == 0
    assert bench.produce(topic, pairs, codec=sent).error_code == 0
    assert [one.codec for one in bench.stored(topic)] == [sent, *wanted.values(), sent]
    assert {record.value for record in bench.records(topic)} == {TEXT}


@effect_of("compression.gzip.level", "compression.lz4.level", "compression.zstd.level")
@pytest.mark.parametrize(
    ("codec", "default", "others"),
    [("gzip", "6", ("1", "4")), ("lz4", "9", ("1", "12")), ("zstd", "3", ("-5", "19"))],
)
def test_the_level_changes_how_small_batches_get(
    bench: Bench, lever: Lever, codec: str, default: str, others: tuple[str, str]
) -> None:
    key = f"compression.{codec}.level"
    topic = bench.topic({"compression.type": codec})
    pairs = [(b"k", TEXT)]
    bench.put(topic, pairs)
    for level in (*others, default):
        with lever.turned(topic, key, level):
            bench.put(topic, pairs)
    bench.put(topic, pairs)
    sizes = [one.size_bytes for one in bench.stored(topic)]
    fast, small = sizes[1:3]
    assert small < fast
    assert sizes[0] == sizes[3] == sizes[4]
    assert sizes[0] not in (fast, small)


# -- size and replicas -------------------------------------------------------------------------


@effect_of("max.message.bytes")
def test_larger_batches_than_the_topic_takes_are_refused(bench: Bench, lever: Lever) -> None:
    topic = bench.topic()
    small, large = [(b"k", b"v" * 100)], [(b"k", b"v" * 5000)]
    size = len(build_batch(small))
    assert bench.code(topic, large) is ErrorCode.NONE
    with lever.turned(topic, "max.message.bytes", str(size)):
        assert bench.code(topic, large) is ErrorCode.MESSAGE_TOO_LARGE
        assert bench.code(topic, small) is ErrorCode.NONE
        assert bench.code(topic, [(b"k", b"v" * 101)]) is ErrorCode.MESSAGE_TOO_LARGE
    assert bench.code(topic, large) is ErrorCode.NONE


@effect_of("min.insync.replicas")
def test_too_few_replicas_in_sync_refuse_acks_all(tmp_path: Path) -> None:
    """A topic with two replicas, one of them of a broker that is not there."""
    with (
        BrokerThread(QUICK, directory=tmp_path, is_standalone=True) as broker,
        WireClient(broker.bootstrap_servers) as client,
    ):
        client.create_topic("wide")
    _give_second_replica(tmp_path / "metadata")
    with BrokerThread(QUICK, directory=tmp_path, is_standalone=True) as broker:
        bench = Bench(broker)
        assert _codes_by_acks(bench) == [ErrorCode.NONE, ErrorCode.NONE]
        for lever in (Lever(bench, is_default=False), Lever(bench, is_default=True)):
            with lever.turned("wide", "min.insync.replicas", "2"):
                assert _codes_by_acks(bench) == [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NONE]
            assert _codes_by_acks(bench) == [ErrorCode.NONE, ErrorCode.NONE]
        bench.client.socket.close()


def test_more_replicas_than_there_are_cannot_be_asked_for(bench: Bench) -> None:
    """As in Kafka since 4.0: a topic of one replica is written to whatever the setting."""
    topic = bench.topic({"min.insync.replicas": "3"})
    bench.put(topic)


def _codes_by_acks(bench: Bench) -> list[ErrorCode]:
    """Of acks=all and acks=1."""
    batch = bytes(build_batch([(b"k", b"v")], BatchSpec(timestamp_ms=wall_ms())))
    answers = [bench.client.produce("wide", batch, acks=acks) for acks in (-1, 1)]
    return [ErrorCode(one.responses[0].partition_responses[0].error_code) for one in answers]


def _give_second_replica(metadata: Path) -> None:
    """What the metadata of a cluster would say after the other broker went away."""
    (path,) = metadata.glob("wide.*.topic")
    head, partition = documents.decode("topic", path.read_bytes())
    partition["replicas"] = [1, 2]
    path.write_bytes(documents.encode("topic", [head, partition]))


# -- where a value comes from ------------------------------------------------------------------


def test_the_nearest_setting_counts(bench: Bench) -> None:
    """The topic's own, else this broker's, else all brokers', else the default."""
    topic = bench.topic()
    pairs = [(b"k", b"v" * 2000)]
    steps: list[tuple[ResourceType, str, str, str | None, ErrorCode]] = [
        (ResourceType.BROKER, "", "message.max.bytes", "1000", ErrorCode.MESSAGE_TOO_LARGE),
        (ResourceType.BROKER, "1", "message.max.bytes", "3000", ErrorCode.NONE),
        (ResourceType.TOPIC, topic, "max.message.bytes", "1000", ErrorCode.MESSAGE_TOO_LARGE),
        (ResourceType.TOPIC, topic, "max.message.bytes", None, ErrorCode.NONE),
        (ResourceType.BROKER, "1", "message.max.bytes", None, ErrorCode.MESSAGE_TOO_LARGE),
        (ResourceType.BROKER, "", "message.max.bytes", None, ErrorCode.NONE),
    ]
    for kind, name, key, value, expected in steps:
        bench.alter(kind, name, key, value)
        assert bench.code(topic, pairs) is expected, (kind, name, value)
