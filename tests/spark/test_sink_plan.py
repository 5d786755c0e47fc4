"""What a sink checks on the driver, before any row and without asking a broker."""

import pickle
import warnings

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from millstream.pipelines.errors import PipelineError
from millstream.pipelines.spark import sink_plan as sink_plan_module
from millstream.pipelines.spark.batch_writer import BatchWriter
from millstream.pipelines.spark.data_source import MillstreamDataSource
from millstream.pipelines.spark.sink_plan import SinkPlan, SinkWarning, sink_plan

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
VALUE: dict[str, DataType] = {"value": StringType()}


def plan_of(
    fields: dict[str, DataType], options: dict[str, str], *, is_overwrite: bool = False
) -> SinkPlan:
    schema = StructType()
    for name, kind in fields.items():
        schema.add(name, kind)
    return sink_plan(CaseInsensitiveDict(options), schema, is_overwrite=is_overwrite)


@pytest.mark.parametrize(
    ("fields", "options", "told"),
    [
        ({"key": StringType()}, {"topic": "t"}, "no column 'value'"),
        ({"Value": StringType()}, {"topic": "t"}, "no column 'value'"),
        ({"value": IntegerType()}, {"topic": "t"}, "column 'value' is int; it must be string or"),
        (VALUE, {}, "set one of them"),
        ({**VALUE, "topic": BinaryType()}, {}, "column 'topic' is binary; it must be string"),
        ({**VALUE, "key": DoubleType()}, {"topic": "t"}, "column 'key' is double"),
        ({**VALUE, "partition": LongType()}, {"topic": "t"}, "it must be int"),
        (
            {**VALUE, "headers": MapType(StringType(), BinaryType())},
            {"topic": "t"},
            "column 'headers' is map<string,binary>; it must be array<struct<key",
        ),
        (VALUE, {"topic": "a b"}, "option 'topic' is 'a b': cannot be the name of a topic"),
        (VALUE, {"topic": "t", "kafka.acks": "7"}, r"options kafka\.\*: .*for acks"),
        (VALUE, {"topic": "t", "kafka.linger.ms": "x"}, r"options kafka\.\*: .*linger\.ms"),
        (VALUE, {"topic": "t", "kafka.bootstrap.servers": "x"}, "host:port"),
        (VALUE, {"topic": "t", "kafka.value.serializer": "x"}, "cannot be used"),
        (VALUE, {"topic": "t", "deliveryGuarantee": "exactly_once"}, "needs transactions"),
        (VALUE, {"topic": "t", "deliveryGuarantee": "never"}, "must be at_least_once"),
    ],
)
def test_what_cannot_be_is_told(
    fields: dict[str, DataType], options: dict[str, str], told: str
) -> None:
    with pytest.raises(PipelineError, match=told):
        plan_of(fields, SERVERS | options)


def test_the_servers_must_be_named() -> None:
    with pytest.raises(PipelineError, match=r"kafka\.bootstrap\.servers' is not set"):
        plan_of(VALUE, {"topic": "t"})


def test_a_topic_cannot_be_overwritten() -> None:
    with pytest.raises(PipelineError, match=r"only be appended: use mode\('append'\)"):
        plan_of(VALUE, SERVERS | {"topic": "t"}, is_overwrite=True)


def test_a_stream_in_complete_mode_adds_its_result_to_the_topic() -> None:
    """Spark's word for that mode is overwrite; its connector takes it."""
    options = CaseInsensitiveDict(SERVERS | {"topic": "t"})
    schema = StructType().add("value", StringType())
    assert MillstreamDataSource(options).streamWriter(schema, True) is not None


def test_what_is_surely_not_meant_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_plan_module, "_shown", {})
    options = {"topic": "t", "topik": "u", "kafka.acks": "1", "kafka.sasl.jaas.config": "secret"}
    options["kafka.linger.m"] = "1"
    with pytest.warns(SinkWarning) as found:
        plan_of({**VALUE, "timestamp": TimestampType(), "Key": StringType()}, SERVERS | options)
    told = " | ".join(str(one.message) for one in found)
    assert "columns are not written: timestamp, Key" in told
    assert "option 'topik' is unknown and ignored; did you mean topic?" in told
    assert "'kafka.sasl.jaas.config' is ignored" in told
    assert "'kafka.linger.m' is ignored: unknown client setting; did you mean" in told
    assert "secret" not in told
    assert "kafka.acks is not all" in told


def test_a_warning_is_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream makes its writer anew for every micro-batch."""
    monkeypatch.setattr(sink_plan_module, "_shown", {})
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(3):
            plan_of({**VALUE, "other": StringType()}, SERVERS | {"topic": "t"})
    assert [str(one.message) for one in found] == ["columns are not written: other"]


def test_a_writer_goes_to_tasks_by_pickle_and_opens_nothing_before() -> None:
    """Nobody listens at the address, and neither making a writer nor moving it notices."""
    schema = StructType().add("value", BinaryType())
    options = CaseInsensitiveDict(SERVERS | {"topic": "t"})
    writer = BatchWriter(options, schema, is_overwrite=False)
    moved = pickle.loads(pickle.dumps(writer))
    moved.commit([None])
    moved.abort([None])
    assert moved.write(iter([])).record_count == 0
