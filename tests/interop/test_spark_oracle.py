"""Our decisions against the classes of Spark's own connector, on random input.

No Spark session and no broker: its pure parts are called in a bare JVM. Hypothesis prints the
failing example and the line that replays it.
"""

import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kits.interop.client_targets import PEERS
from kits.interop.jvm_gateway import Gateway, jvm_gateway
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.pipelines.admission import Backlog, rate_limited
from millstream.pipelines.errors import OptionsInvalid, PipelineError
from millstream.pipelines.java_regex import compile_java_pattern
from millstream.pipelines.offsets_json import (
    offsets_from_text,
    partitions_from_text,
    text_from_offsets,
    text_from_partitions,
)
from millstream.pipelines.option_values import OptionTexts
from millstream.pipelines.options import batch_read_options, stream_read_options
from millstream.pipelines.progress import lag
from millstream.pipelines.ranges import OffsetRange, split_ranges
from millstream.pipelines.source_offset import SourceOffset, document_from_source_offset
from millstream.testing.peers.java_programs import spark_jars
from millstream.testing.peers.runtimes import require_runtime

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("spark-oracle")]

# Every example is a few dozen round trips to the JVM.
some = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

TOPICS = ["a", "b.c", "d-e_f"]
PARTITIONS = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 9))
OFFSETS = st.one_of(st.integers(0, 50), st.integers(0, 2**60)).map(Offset)
POSITIONS = st.dictionaries(PARTITIONS, OFFSETS, max_size=8)
ROOM = st.one_of(st.integers(0, 40), st.integers(0, 2**50))


@pytest.fixture(scope="module")
def jvm() -> Iterator[Gateway]:
    require_runtime("java", "mvn")
    with jvm_gateway(spark_jars(PEERS)) as gateway:
        yield gateway


def scala_offsets(jvm: Gateway, positions: dict[TopicPartition, Offset]) -> Any:
    return jvm.connector.JsonUtils.partitionOffsets(text_from_offsets(positions))


def python_offsets(jvm: Gateway, offsets: Any) -> dict[TopicPartition, Offset]:
    return offsets_from_text(jvm.connector.JsonUtils.partitionOffsets(offsets))


@some
@given(positions=POSITIONS)
def test_offsets_are_read_by_the_other_one(
    jvm: Gateway, positions: dict[TopicPartition, Offset]
) -> None:
    assert python_offsets(jvm, scala_offsets(jvm, positions)) == positions


@some
@given(partitions=st.frozensets(PARTITIONS))
def test_partitions_are_read_by_the_other_one(
    jvm: Gateway, partitions: frozenset[TopicPartition]
) -> None:
    read = jvm.connector.JsonUtils.partitions(text_from_partitions(partitions))
    assert {TopicPartition(one.topic(), one.partition()) for one in read} == partitions
    written = jvm.connector.JsonUtils.partitions(jvm.sequence(list(read)))
    assert partitions_from_text(written) == partitions


@some
@given(positions=POSITIONS, begins=POSITIONS, is_initial=st.booleans())
def test_the_connector_reads_our_checkpoint(
    jvm: Gateway,
    positions: dict[TopicPartition, Offset],
    begins: dict[TopicPartition, Offset],
    is_initial: bool,
) -> None:
    """The reserved key is a topic without partitions to it."""
    ids = {name: TopicId(UUID(int=number)) for number, name in enumerate(TOPICS)}
    offset = SourceOffset(positions=positions, begins=begins, topic_ids=ids, is_initial=is_initial)
    text = json.dumps(document_from_source_offset(offset))
    assert python_offsets(jvm, jvm.connector.JsonUtils.partitionOffsets(text)) == positions


@some
@given(
    positions=st.dictionaries(PARTITIONS, st.tuples(OFFSETS, st.integers(-2, 3000)), max_size=6),
    min_partitions=st.none() | st.integers(1, 40),
    records_max=st.none() | st.integers(1, 500),
)
def test_ranges_are_the_connectors(
    jvm: Gateway,
    positions: dict[TopicPartition, tuple[Offset, int]],
    min_partitions: int | None,
    records_max: int | None,
) -> None:
    asked = [
        OffsetRange(*tp, start, Offset(start + size))
        for tp, (start, size) in sorted(positions.items())
    ]
    given_options = {"minPartitions": min_partitions, "maxRecordsPerPartition": records_max}
    options = {name: str(value) for name, value in given_options.items() if value is not None}
    options_map = jvm.java.org.apache.spark.sql.util.CaseInsensitiveStringMap(options)
    nothing = jvm.java.scala.Option.empty()
    scala_ranges = [
        jvm.connector.KafkaOffsetRange(
            jvm.java.org.apache.kafka.common.TopicPartition(one.topic, one.partition),
            one.start,
            one.end,
            nothing,
        )
        for one in asked
    ]
    calculator = jvm.connector.KafkaOffsetRangeCalculator.apply(options_map)
    found = calculator.getRanges(jvm.sequence(scala_ranges), jvm.sequence([]))
    theirs = [
        OffsetRange(
            one.topic(), one.partition(), Offset(one.fromOffset()), Offset(one.untilOffset())
        )
        for one in (found.apply(index) for index in range(found.size()))
    ]
    ours = split_ranges(asked, min_partitions=min_partitions, max_records_per_partition=records_max)
    assert ours == theirs


@some
@given(
    rooms=st.dictionaries(PARTITIONS, st.tuples(OFFSETS, ROOM), max_size=8),
    offsets_max=st.one_of(st.integers(1, 100), st.integers(1, 2**55)),
)
def test_rate_limit_is_the_connectors(
    jvm: Gateway, rooms: dict[TopicPartition, tuple[Offset, int]], offsets_max: int
) -> None:
    begins = {tp: begin for tp, (begin, _) in rooms.items()}
    latest = {tp: Offset(begin + room) for tp, (begin, room) in rooms.items()}
    stream = jvm.bare("org.apache.spark.sql.kafka010.KafkaMicroBatchStream")
    theirs = jvm.call_private(
        stream, "rateLimit", offsets_max, scala_offsets(jvm, begins), scala_offsets(jvm, latest)
    )
    ours = rate_limited(offsets_max, Backlog(begins=begins, latest=latest))
    assert ours == python_offsets(jvm, theirs)


@some
@given(consumed=POSITIONS, latest=POSITIONS)
def test_lag_is_the_connectors(
    jvm: Gateway, consumed: dict[TopicPartition, Offset], latest: dict[TopicPartition, Offset]
) -> None:
    assume(latest)
    offset = jvm.connector.KafkaSourceOffset(scala_offsets(jvm, consumed))
    theirs = jvm.companion("org.apache.spark.sql.kafka010.KafkaMicroBatchStream").metrics(
        jvm.java.java.util.Optional.of(offset),
        jvm.java.scala.Option.apply(scala_offsets(jvm, latest)),
    )
    found = lag(consumed, latest)
    assert found is not None
    ours = {name: float(value) for name, value in found.metrics().items()}
    assert ours == pytest.approx({name: float(theirs[name]) for name in theirs})


@pytest.mark.parametrize(
    "text", ["15m", "90s", "100", "250us", "1500us", "2h", "1d", " 5MIN ", "5 m", "1.5s", "", "5x"]
)
def test_times_are_read_as_spark_reads_them(jvm: Gateway, text: str) -> None:
    utils = jvm.java.org.apache.spark.network.util.JavaUtils
    check_same(
        lambda: utils.timeStringAsMs(text), lambda: OptionTexts({"x": text}).duration_ms("x")
    )


@pytest.mark.parametrize(
    "text", ["64m", "1g", "512kb", "1kib", "2ki", "3pb", "7t", "8b", "100", "1.5g", "", "5x", "-1"]
)
def test_sizes_are_read_as_spark_reads_them(jvm: Gateway, text: str) -> None:
    utils = jvm.java.org.apache.spark.network.util.JavaUtils
    check_same(
        lambda: utils.byteStringAsBytes(text), lambda: OptionTexts({"x": text}).size_bytes("x")
    )


def check_same(theirs: Any, ours: Any) -> None:
    """Equal values, or both refuse."""
    try:
        expected = theirs()
    except Exception:  # noqa: BLE001 - whatever Java throws
        with pytest.raises(OptionsInvalid):
            ours()
    else:
        assert ours() == expected


PIECES = st.sampled_from(
    [
        *("a", "b", "-", ".", "^", "$", "[a-c]", "[^a]", "[]a]", "(a|b)", "(?:a)", "(?<n>a)"),
        *("a++", "a{1,2}", "(?i:A)", r"\.", r"\d", r"\z", r"\Qa.b\E"),
        *(r"\p{Alpha}", r"\P{Digit}", r"[\p{Lower}1]"),
    ]
)
NAMES = st.text("abcA1.-_", min_size=1, max_size=8)


@some
@given(pieces=st.lists(PIECES, min_size=1, max_size=5), names=st.lists(NAMES, max_size=6))
def test_patterns_find_the_same_topics(jvm: Gateway, pieces: list[str], names: list[str]) -> None:
    pattern = "".join(pieces)
    assume(pattern.count("(?<n>") < 2)
    java = jvm.java.java.util.regex.Pattern.compile(pattern)
    ours = compile_java_pattern(pattern)
    assert [bool(ours.search(name)) for name in names] == [
        java.matcher(name).find() for name in names
    ]


READ = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
ONE = '{"t":{"0":%d}}'
CASES: list[tuple[str, dict[str, str | None]]] = [
    ("plain", {}),
    ("no servers", {"kafka.bootstrap.servers": None}),
    ("nothing to read", {"subscribe": None}),
    ("two strategies", {"assign": '{"t":[0]}'}),
    ("empty subscribe", {"subscribe": " , "}),
    ("pattern", {"subscribe": None, "SUBSCRIBEPATTERN": "t.*"}),
    ("empty pattern", {"subscribe": None, "subscribePattern": " "}),
    ("assign", {"subscribe": None, "assign": '{"t":[0,1]}'}),
    ("assign no JSON", {"subscribe": None, "assign": "t"}),
    ("start earliest", {"startingOffsets": " EARLIEST "}),
    ("start latest", {"startingOffsets": "latest"}),
    ("start given", {"startingOffsets": ONE % 5}),
    ("start given latest", {"startingOffsets": ONE % -1}),
    ("start given earliest", {"startingOffsets": ONE % -2}),
    ("start nonsense", {"startingOffsets": "soon"}),
    ("end earliest", {"endingOffsets": "earliest"}),
    ("end latest", {"endingOffsets": "latest"}),
    ("end given", {"endingOffsets": ONE % 5}),
    ("end given earliest", {"endingOffsets": ONE % -2}),
    ("time", {"startingTimestamp": " 1000 "}),
    ("time nonsense", {"startingTimestamp": "yesterday"}),
    ("times", {"startingOffsetsByTimestamp": ONE % 1000}),
    ("times nonsense", {"startingOffsetsByTimestamp": "{"}),
    ("end times", {"endingOffsetsByTimestamp": ONE % 1000}),
    ("min partitions", {"minPartitions": "3"}),
    ("min partitions 0", {"minPartitions": "0"}),
    ("min partitions nonsense", {"minPartitions": "x"}),
    ("max records 0", {"maxRecordsPerPartition": "0"}),
    ("min above max", {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}),
    ("min and max", {"minOffsetsPerTrigger": "8", "maxOffsetsPerTrigger": "8"}),
    ("group", {"kafka.group.id": "g", "groupIdPrefix": "p"}),
    ("reset", {"kafka.auto.offset.reset": "earliest"}),
    ("key deserializer", {"kafka.key.deserializer": "x"}),
    ("value deserializer", {"kafka.Value.Deserializer": "x"}),
    ("auto commit", {"kafka.enable.auto.commit": "true"}),
    ("interceptors", {"kafka.interceptor.classes": "x"}),
    ("other setting", {"kafka.fetch.min.bytes": "1"}),
    ("unknown", {"subscribes": "x"}),
]


def connector_takes(jvm: Gateway, kind: str, options: dict[str, str]) -> bool:
    """What it does before it asks a broker: validate, and find where to start."""
    scala_map = jvm.java.org.apache.spark.api.python.PythonUtils.toScalaMap(options)
    scala_options = jvm.java.org.apache.spark.sql.catalyst.util.CaseInsensitiveMap(scala_map)
    provider = jvm.connector.KafkaSourceProvider
    start = ("startingtimestamp", "startingoffsetsbytimestamp", "startingoffsets")
    try:
        jvm.call_private(provider(), f"validate{kind}Options", scala_options)
        provider.getKafkaOffsetRangeLimit(scala_options, *start, None)
    except Exception:  # noqa: BLE001 - whatever Java throws
        return False
    return True


@pytest.mark.parametrize(("name", "changes"), CASES, ids=[name for name, _ in CASES])
@pytest.mark.parametrize("kind", ["Stream", "Batch"])
def test_options_are_taken_and_refused_alike(
    jvm: Gateway, kind: str, name: str, changes: dict[str, str | None]
) -> None:
    merged = {**READ, **changes}
    options = {key: value for key, value in merged.items() if value is not None}
    is_taken_by_connector = connector_takes(jvm, kind, options)
    ours = stream_read_options if kind == "Stream" else batch_read_options
    try:
        ours(options)
        is_taken = True
    except PipelineError:
        is_taken = False
    assert is_taken == is_taken_by_connector
