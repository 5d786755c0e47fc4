"""Options of the Spark source and sink: what is taken, what is refused and how it is told."""

import pickle
from collections.abc import Callable, Mapping

import pytest

from millstream.model.ids import TopicPartition
from millstream.pipelines.admission import AdmissionLimits
from millstream.pipelines.bounds import AtOffsets, AtTimestamp, AtTimestamps, Edge, NoMatch
from millstream.pipelines.errors import DataLost, OptionsInvalid, RangeInvalid
from millstream.pipelines.java_regex import PatternUnsupported, compile_java_pattern
from millstream.pipelines.option_rules import DeliveryGuarantee, IsolationLevel, OffsetFetch
from millstream.pipelines.options import (
    BatchReadOptions,
    StreamReadOptions,
    WriteOptions,
    batch_read_options,
    stream_read_options,
    write_options,
)
from millstream.pipelines.subscription import Assign, Subscribe, SubscribePattern, TopicFacts

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
READ = {**SERVERS, "subscribe": "t"}
Parse = Callable[[Mapping[str, str]], BatchReadOptions | StreamReadOptions | WriteOptions]
BOTH = pytest.mark.parametrize("parse", [batch_read_options, stream_read_options])


def refusal(parse: Parse, options: dict[str, str]) -> OptionsInvalid:
    with pytest.raises(OptionsInvalid) as caught:
        parse(options)
    return caught.value


def test_names_that_are_nearly_right_are_told_with_what_is_missing() -> None:
    without_prefix = {"bootstrap.servers": "localhost:9092", "subscribe": "t"}
    assert "write kafka.bootstrap.servers" in str(refusal(batch_read_options, without_prefix))
    of_a_sink = {"kafka.bootstrap.servers": "localhost:9092", "topic": "t"}
    assert str(refusal(stream_read_options, of_a_sink)).endswith("; topic is for writing")


def test_defaults_of_a_stream_are_the_connectors() -> None:
    found = stream_read_options(READ)
    read = found.read
    assert read.subscription == Subscribe(("t",))
    assert read.start is Edge.LATEST
    assert read.no_match is NoMatch.ERROR
    assert (read.fail_on_data_loss, read.include_headers) == (True, False)
    assert (read.min_partitions, read.max_records_per_partition) == (None, None)
    assert read.poll_timeout_ms == 120_000
    assert read.offset_fetch == OffsetFetch(attempts=3, interval_ms=1000)
    assert read.partition_cache_ttl_ms is None
    assert (read.group_id, read.group_id_prefix) == (None, None)
    assert read.isolation is IsolationLevel.READ_UNCOMMITTED
    assert read.client_settings == {"bootstrap.servers": "localhost:9092"}
    assert found.limits == AdmissionLimits()
    assert found.limits.max_delay_ms == 15 * 60 * 1000
    assert found.limits.is_unlimited
    assert read.warnings == ()


def test_defaults_of_a_batch_are_the_connectors() -> None:
    found = batch_read_options(READ)
    assert (found.read.start, found.end) == (Edge.EARLIEST, Edge.LATEST)


def test_every_option_is_read_whatever_its_case() -> None:
    found = stream_read_options(
        {
            "KAFKA.bootstrap.SERVERS": "h:1",
            "SubscribePattern": " orders-.* ",
            "STARTINGOFFSETS": ' {"t":{"0":5,"1":-1,"2":-2}} ',
            "maxoffsetspertrigger": "1000",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "90s",
            "maxBytesPerTrigger": "64m",
            "minPartitions": "7",
            "maxRecordsPerPartition": "3000000000",
            "failOnDataLoss": "FALSE",
            "includeHeaders": "True",
            "groupIdPrefix": "p",
            "kafkaConsumer.pollTimeoutMs": "5",
            "fetchOffset.numRetries": "4",
            "fetchOffset.retryIntervalMs": "0",
            "partition.metadata.cache.ttl.ms": "2000",
            "kafka.isolation.level": "READ_COMMITTED",
            "kafka.fetch.max.bytes": "9",
            "startingOffsetsByTimestampStrategy": "Latest",
        }
    )
    read = found.read
    assert read.subscription == SubscribePattern("orders-.*")
    offsets = {TopicPartition("t", 0): 5, TopicPartition("t", 1): -1, TopicPartition("t", 2): -2}
    assert read.start == AtOffsets(offsets)  # type: ignore[arg-type]
    assert found.limits == AdmissionLimits(
        max_offsets=1000, min_offsets=10, max_delay_ms=90_000, max_bytes=64 * 1024**2
    )
    assert (read.min_partitions, read.max_records_per_partition) == (7, 3_000_000_000)
    assert (read.fail_on_data_loss, read.include_headers) == (False, True)
    assert read.group_id_prefix == "p"
    assert read.poll_timeout_ms == 5
    assert read.offset_fetch == OffsetFetch(attempts=4, interval_ms=0)
    assert read.partition_cache_ttl_ms == 2000
    assert read.isolation is IsolationLevel.READ_COMMITTED
    assert read.client_settings["fetch.max.bytes"] == "9"
    assert read.no_match is NoMatch.LATEST
    assert read.warnings == ()


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("minPartitions", "0", "between 1 and 2147483647"),
        ("minPartitions", "1_000", "must be an integer"),
        ("minPartitions", " 5", "must be an integer"),
        ("minPartitions", "2147483648", "2147483647"),
        ("maxRecordsPerPartition", "-1", "between 1"),
        ("failOnDataLoss", "yes", "true or false"),
        ("includeHeaders", "1", "true or false"),
        ("kafkaConsumer.pollTimeoutMs", "0", "between 1"),
        ("fetchOffset.numRetries", "0", "between 1"),
        ("fetchOffset.retryIntervalMs", "-1", "between 0"),
        ("partition.metadata.cache.ttl.ms", "0", "-1 for no cache"),
        ("partition.metadata.cache.ttl.ms", "-2", "between -1"),
        ("startingOffsetsByTimestampStrategy", "earliest", "error or latest"),
        ("kafka.isolation.level", "committed", "read_committed"),
        ("maxOffsetsPerTrigger", "0", "between 1"),
        ("maxTriggerDelay", "5 minutes", "units"),
        ("maxTriggerDelay", "-5s", "units"),
        ("maxBytesPerTrigger", "0", "at least one"),
        ("maxBytesPerTrigger", "64x", "units"),
        ("maxBytesPerTrigger", "9999999p", "too large"),
        ("startingOffsets", "tomorrow", "earliest, latest, or JSON"),
        ("startingOffsets", '{"t":{"0":-3}}', "out of bounds"),
        ("startingOffsets", '{"t":{"0":1},"t":{"0":2}}', "twice"),
        ("startingTimestamp", "-1", "between 0"),
        ("startingTimestamp", "2024-01-01", "must be an integer"),
        ("startingOffsetsByTimestamp", '{"t":{"0":-1}}', "out of bounds"),
        ("kafka.auto.offset.reset", "earliest", "startingOffsets"),
        ("kafka.enable.auto.commit", "true", "checkpoint"),
        ("kafka.interceptor.classes", "x", "cannot be used"),
        ("kafka.key.deserializer", "x", "binary"),
        ("kafka.value.deserializer", "x", "binary"),
        ("subscribe", " , ", "no topics"),
        ("subscribe", "a,b/c", "'b/c' cannot be the name"),
        ("kafka.bootstrap.servers", " ", "broker"),
    ],
)
@BOTH
def test_a_wrong_value_is_told_with_its_option(
    parse: Parse, option: str, value: str, told: str
) -> None:
    found = refusal(parse, {**READ, option: value})
    assert found.option == option
    assert option in str(found)
    assert value in str(found)
    assert told in str(found)


@BOTH
def test_exactly_one_strategy(parse: Parse) -> None:
    assert "one of subscribe" in str(refusal(parse, SERVERS))
    both = refusal(parse, {**READ, "assign": '{"t":[0]}'})
    assert "only one" in str(both)
    assert "assign is set too" in str(both)


@BOTH
def test_servers_are_required(parse: Parse) -> None:
    found = refusal(parse, {"subscribe": "t"})
    assert str(found).startswith("option 'kafka.bootstrap.servers' is not set")


def test_a_minimum_above_the_maximum_is_refused() -> None:
    options = {**READ, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}
    assert "higher than maxOffsetsPerTrigger, which is 8" in str(
        refusal(stream_read_options, options)
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("endingOffsets", "latest"),
        ("endingOffsetsByTimestamp", '{"t":{"0":1}}'),
        ("endingTimestamp", "1"),
    ],
)
def test_a_stream_has_no_end(option: str, value: str) -> None:
    assert "has no end" in str(refusal(stream_read_options, {**READ, option: value}))
    batch_read_options({**READ, option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "latest"),
        ("startingOffsets", '{"t":{"0":-1}}'),
        ("endingOffsets", "earliest"),
        ("endingOffsets", '{"t":{"0":-2}}'),
    ],
)
def test_a_batch_neither_starts_at_the_end_nor_ends_at_the_start(option: str, value: str) -> None:
    found = refusal(batch_read_options, {**READ, option: value})
    assert "a batch query cannot use" in str(found)


def test_start_and_end_of_a_batch_must_fit() -> None:
    def asked(start: str, end: str) -> dict[str, str]:
        return {**READ, "startingOffsets": start, "endingOffsets": end}

    with pytest.raises(RangeInvalid, match="t-0 starts at offset 5, after its end at offset 4"):
        batch_read_options(asked('{"t":{"0":5}}', '{"t":{"0":4}}'))
    with pytest.raises(RangeInvalid, match="Only the end names: t-1"):
        batch_read_options(asked('{"t":{"0":5}}', '{"t":{"0":6,"1":6}}'))
    batch_read_options(asked('{"t":{"0":5}}', '{"t":{"0":-1}}'))
    batch_read_options(asked('{"t":{"0":-2}}', '{"t":{"0":0}}'))
    times = {"startingOffsetsByTimestamp": '{"t":{"0":5}}'}
    with pytest.raises(RangeInvalid, match="timestamp 5"):
        batch_read_options({**READ, **times, "endingOffsetsByTimestamp": '{"t":{"0":4}}'})


def test_times_go_before_offsets_and_what_is_ignored_is_told() -> None:
    options = {**READ, "startingOffsets": "nonsense", "startingOffsetsByTimestamp": '{"t":{"0":7}}'}
    found = stream_read_options(options).read
    assert found.start == AtTimestamps({TopicPartition("t", 0): 7})  # type: ignore[dict-item]
    assert found.warnings == (
        "option 'startingOffsets' is ignored, because startingOffsetsByTimestamp is set",
    )
    found = stream_read_options({**options, "startingTimestamp": " 9 "}).read
    assert found.start == AtTimestamp(9)  # type: ignore[arg-type]
    assert len(found.warnings) == 2


def test_what_has_no_effect_is_a_warning() -> None:
    batch = batch_read_options(
        {**READ, "maxOffsetsPerTrigger": "5", "maxTriggerDelay": "1m", "topic": "x"}
    )
    assert batch.read.warnings == (
        "option 'maxOffsetsPerTrigger' is ignored: it is for streaming queries",
        "option 'maxTriggerDelay' is ignored: it is for streaming queries",
        "option 'topic' is ignored: it is for writing",
    )
    stream = stream_read_options(
        {**READ, "maxTriggerDelay": "1m", "kafka.group.id": "g", "groupIdPrefix": "p"}
    )
    assert stream.read.group_id == "g"
    assert stream.read.warnings == (
        "option 'groupIdPrefix' is ignored, because kafka.group.id is set",
        "option 'maxTriggerDelay' has no effect without minOffsetsPerTrigger",
    )


def test_a_misspelt_option_is_told_and_sparks_own_are_not() -> None:
    options = {**READ, "failOnDataLos": "false", "zebra": "1", "checkpointLocation": "/c", "x": "1"}
    found = stream_read_options(options, also_known=["X"]).read
    assert found.warnings == (
        "option 'failondatalos' is unknown and ignored; did you mean failOnDataLoss?",
        "option 'zebra' is unknown and ignored",
    )
    assert found.fail_on_data_loss


def test_sink_options() -> None:
    found = write_options({**SERVERS, "topic": " t ", "kafka.acks": "all", "subscribe": "x"})
    assert found.topic == "t"
    assert found.guarantee is DeliveryGuarantee.AT_LEAST_ONCE
    assert found.client_settings["acks"] == "all"
    assert found.warnings == ("option 'subscribe' is ignored: it is for reading",)
    assert write_options(SERVERS).topic is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("topic", ""),
        ("topic", "a b"),
        ("topic", ".."),
        ("topic", "x" * 250),
        ("kafka.key.serializer", "x"),
        ("kafka.value.serializer", "x"),
        ("includeHeaders", "maybe"),
        ("deliveryGuarantee", "exactly_once"),
        ("deliveryGuarantee", "most"),
        ("kafka.bootstrap.servers", ""),
    ],
)
def test_sink_refuses(option: str, value: str) -> None:
    assert refusal(write_options, {**SERVERS, option: value}).option == option


def test_assign_takes_partitions() -> None:
    found = stream_read_options({**SERVERS, "assign": '{"a":[1,0],"b":[2]}'}).read.subscription
    offset_query = {TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)}
    assert found == Assign(frozenset(offset_query))
    for text in ("{}", '{"a":[]}', '{"a":[-1]}', '{"a":[0,0]}', '{"a":["0"]}', "a", '{"a/":[0]}'):
        refusal(stream_read_options, {**SERVERS, "assign": text})


def test_subscriptions_select_partitions_and_leave_internal_topics() -> None:
    topics = {
        "orders": TopicFacts(partition_count=2),
        "orders-eu": TopicFacts(partition_count=1),
        "__consumer_offsets": TopicFacts(partition_count=3, is_internal=True),
    }
    orders = {TopicPartition("orders", 0), TopicPartition("orders", 1)}
    assert Subscribe(("orders", "__consumer_offsets")).selected(topics) == orders
    # A match anywhere, as in the connector.
    assert SubscribePattern("rders").selected(topics) == orders | {TopicPartition("orders-eu", 0)}
    assert SubscribePattern("^x").selected(topics) == frozenset()
    gone = TopicPartition("orders", 9)
    assert Assign(frozenset(orders | {gone})).selected(topics) == orders
    for missing in (Subscribe(("nope", "orders")), Assign(frozenset({TopicPartition("nope", 0)}))):
        with pytest.raises(RangeInvalid, match="unknown topic nope"):
            missing.selected(topics)


@pytest.mark.parametrize(
    "pattern", ["(", "[a[bc]]", "[a-z&&[^b]]", r"\p{IsGreek}", r"[\P{Alpha}]", r"\h", "a**"]
)
def test_patterns_that_mean_something_else_here_are_refused(pattern: str) -> None:
    with pytest.raises(PatternUnsupported):
        compile_java_pattern(pattern)
    found = refusal(stream_read_options, {**SERVERS, "subscribePattern": pattern})
    assert found.option == "subscribePattern"


def test_errors_survive_pickling() -> None:
    """Spark carries them between processes."""
    for error in (OptionsInvalid("a", "b", "c"), OptionsInvalid("a", None, "c"), DataLost("gone")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again)) == (type(error), str(error))


def test_options_survive_pickling() -> None:
    """They travel to the executors inside the reader."""
    for options in (stream_read_options(READ), batch_read_options(READ), write_options(SERVERS)):
        assert pickle.loads(pickle.dumps(options)) == options


def test_a_long_value_does_not_hide_the_message() -> None:
    text = str({f"t{n}": n for n in range(10_000)})
    told = str(refusal(stream_read_options, {**READ, "startingOffsets": text}))
    assert len(told) < 700
    assert "not JSON" in told


# -- group.id


def test_a_streaming_query_names_the_group_that_is_told_its_progress() -> None:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "group.id": "pages"}
    assert stream_read_options(options).progress_group_id == "pages"
    moved = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "kafka.group.id": "pages"}
    assert stream_read_options(moved).progress_group_id is None


def test_an_empty_group_is_refused_and_a_batch_query_ignores_it() -> None:
    options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "group.id": " "}
    with pytest.raises(OptionsInvalid, match="group"):
        stream_read_options(options)
    [warning] = batch_read_options({**options, "group.id": "pages"}).read.warnings
    assert "'group.id' is ignored" in warning
