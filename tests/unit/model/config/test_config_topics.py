"""A topic's settings: which there are, what may be set, and that each has its effect."""

from dataclasses import fields

import pytest

from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.configs.entries import ConfigSource
from millstream.kernels.compression import Codec
from millstream.model.config import validate_topic_configs
from millstream.model.config.errors import InvalidConfig, InvalidValue, UnknownConfig
from millstream.model.config.inert_keys import INERT_TOPIC_KEYS
from millstream.model.config.inert_reasons import INERT_TOPIC_REASONS
from millstream.model.config.topic_keys import TOPIC_KEYS
from millstream.observe.log_format import FIELDS_ATTRIBUTE
from millstream.storage.config import LogConfig, TimestampType

EFFECTS: dict[str, tuple[str, str, object]] = {
    "delete.retention.ms": ("5", "delete_retention_ms", 5),
    "file.delete.delay.ms": ("5", "file_delete_delay_ms", 5),
    "flush.messages": ("5", "flush_messages", 5),
    "flush.ms": ("5", "flush_ms", 5),
    "index.interval.bytes": ("5", "index_interval_bytes", 5),
    "internal.segment.bytes": ("5", "segment_bytes", 5),
    "max.compaction.lag.ms": ("5", "max_compaction_lag_ms", 5),
    "max.message.bytes": ("5", "max_message_bytes", 5),
    "message.timestamp.after.max.ms": ("5", "timestamp_after_max_ms", 5),
    "message.timestamp.before.max.ms": ("5", "timestamp_before_max_ms", 5),
    "message.timestamp.type": (
        "LogAppendTime",
        "timestamp_type",
        TimestampType.LOG_APPEND_TIME,
    ),
    "min.cleanable.dirty.ratio": ("0.25", "min_cleanable_dirty_ratio", 0.25),
    "min.compaction.lag.ms": ("5", "min_compaction_lag_ms", 5),
    "retention.bytes": ("5", "retention_bytes", 5),
    "retention.ms": ("0", "retention_ms", 0),
    "segment.bytes": ("1048576", "segment_bytes", 1048576),
    "segment.index.bytes": ("64", "segment_index_bytes", 64),
    "segment.jitter.ms": ("5", "segment_jitter_ms", 5),
    "segment.ms": ("5", "segment_ms", 5),
}
"""Key, a text, and the field and value that the logs must see then."""

OTHER_EFFECTS = {
    "cleanup.policy",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "min.insync.replicas",
    "unclean.leader.election.enable",
}
"""Tested one by one below."""


def log_config(**configs: str) -> LogConfig:
    return BrokerConfigs({}).log_config(
        {name.replace("_", "."): text for name, text in configs.items()}
    )


def test_every_key_is_tried_here() -> None:
    assert set(EFFECTS) | OTHER_EFFECTS == set(TOPIC_KEYS)
    assert not set(TOPIC_KEYS) & set(INERT_TOPIC_REASONS)


def test_defaults_are_those_of_the_storage() -> None:
    assert log_config() == LogConfig()


@pytest.mark.parametrize("name", EFFECTS)
def test_key_reaches_the_log(name: str) -> None:
    text, field, value = EFFECTS[name]
    config = BrokerConfigs({}).log_config({name: text})
    assert getattr(config, field) == value
    others = [one.name for one in fields(LogConfig) if one.name != field]
    assert all(getattr(config, one) == getattr(LogConfig(), one) for one in others)


@pytest.mark.parametrize(
    ("text", "is_delete", "is_compact"),
    [
        ("delete", True, False),
        ("compact", False, True),
        ("compact, delete", True, True),
        ("", False, False),
    ],
)
def test_cleanup_policy(text: str, is_delete: bool, is_compact: bool) -> None:
    config = log_config(cleanup_policy=text)
    assert (config.cleanup_delete, config.cleanup_compact) == (is_delete, is_compact)


@pytest.mark.parametrize(
    ("configs", "codec", "level"),
    [
        ({}, None, None),
        ({"compression.type": "producer", "compression.zstd.level": "7"}, None, None),
        ({"compression.type": "uncompressed"}, Codec.NONE, None),
        ({"compression.type": "gzip"}, Codec.GZIP, None),
        ({"compression.type": "gzip", "compression.gzip.level": "9"}, Codec.GZIP, 9),
        ({"compression.type": "snappy", "compression.gzip.level": "9"}, Codec.SNAPPY, None),
        ({"compression.type": "lz4"}, Codec.LZ4, 9),
        ({"compression.type": "lz4", "compression.lz4.level": "3"}, Codec.LZ4, 3),
        ({"compression.type": "zstd"}, Codec.ZSTD, 3),
        ({"compression.type": "zstd", "compression.zstd.level": "-5"}, Codec.ZSTD, -5),
    ],
)
def test_compression(configs: dict[str, str], codec: Codec | None, level: int | None) -> None:
    config = BrokerConfigs({}).log_config(configs)
    assert (config.compression, config.compression_level) == (codec, level)


def test_min_insync_replicas_is_told_as_text() -> None:
    assert (
        BrokerConfigs({}).topic_text({"min.insync.replicas": " 2 "}, "min.insync.replicas") == "2"
    )
    assert BrokerConfigs({}).topic_text({}, "min.insync.replicas") == "1"


def test_what_kafka_takes_and_storage_does_not_is_brought_into_bounds() -> None:
    config = BrokerConfigs({}).log_config({"segment.index.bytes": "4", "retention.bytes": "-7"})
    assert (config.segment_index_bytes, config.retention_bytes) == (8, -1)


@pytest.mark.parametrize(
    "configs",
    [
        {"segment.bytes": "1048575"},
        {"segment.ms": "0"},
        {"retention.ms": "-2"},
        {"max.message.bytes": "-1"},
        {"cleanup.policy": "COMPACT"},
        {"cleanup.policy": "compact,,delete"},
        {"compression.type": "none"},
        {"compression.gzip.level": "0"},
        {"compression.lz4.level": "18"},
        {"compression.zstd.level": "23"},
        {"message.timestamp.type": "logappendtime"},
        {"min.cleanable.dirty.ratio": "1.5"},
        {"min.insync.replicas": "0"},
        {"flush.messages": "0"},
        {"segment.index.bytes": "3"},
    ],
)
def test_value_outside_its_rule_is_refused(configs: dict[str, str]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(configs))):
        validate_topic_configs(configs)


def test_longest_compaction_lag_must_not_be_below_the_shortest() -> None:
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms \(10\)"):
        validate_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    validate_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})


def test_compaction_lags_of_topic_and_broker_are_looked_at_together() -> None:
    configs = BrokerConfigs({"log.cleaner.max.compaction.lag.ms": "100"})
    with pytest.raises(InvalidConfig):
        configs.check_topic_configs({"min.compaction.lag.ms": "101"})
    configs.check_topic_configs({"min.compaction.lag.ms": "100"})


def test_unknown_key_is_refused() -> None:
    with pytest.raises(UnknownConfig, match=r"message\.format\.version"):
        validate_topic_configs({"message.format.version": "2.8"})


@pytest.mark.parametrize("name", INERT_TOPIC_REASONS)
def test_key_without_effect_is_taken_shown_and_logged_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    configs = BrokerConfigs({})
    stored = {name: str(INERT_TOPIC_KEYS[name].default)}
    validate_topic_configs(stored)
    with pytest.raises(InvalidValue):
        validate_topic_configs({name: "perhaps"})
    with caplog.at_level("WARNING"):
        for _ in range(2):
            assert configs.log_config(stored) == LogConfig()
    assert [vars(one)[FIELDS_ATTRIBUTE]["reason"] for one in caplog.records] == [
        INERT_TOPIC_REASONS[name]
    ]
    (shown,) = configs.describe_topic(stored, [name])
    assert (shown.value, shown.source) == (stored[name], ConfigSource.TOPIC)
    assert not configs.describe_topic({}, [name])


def test_tiered_storage_is_refused_with_its_reason() -> None:
    with pytest.raises(InvalidConfig, match="tiered storage is not supported"):
        validate_topic_configs({"remote.storage.enable": "true"})


def test_an_internal_key_is_shown_where_it_is_set() -> None:
    name = "internal.segment.bytes"
    configs = BrokerConfigs({})
    assert not configs.describe_topic({}, [name])
    assert [one.value for one in configs.describe_topic({name: "100"}, [name])] == ["100"]


def test_stored_setting_that_cannot_be_is_passed_over() -> None:
    """A log must open, whatever another version of the program has left in its topic's file."""
    stored = {"retention.ms": "soon", "from.the.future": "1", "segment.ms": "5"}
    configs = BrokerConfigs({})
    assert configs.log_config(stored) == LogConfig(segment_ms=5)
    entries = {one.key.name: one for one in configs.describe_topic(stored, None)}
    assert entries["retention.ms"].value == "604800000"
    assert entries["retention.ms"].source.name == "DEFAULT"


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_throttled_replicas_are_named_or_all(side: str) -> None:
    key = f"{side}.replication.throttled.replicas"
    for text in ("", "*", "0:1", "0:1, 12:345"):
        validate_topic_configs({key: text})
    for text in ("*,0:1", "1", "0:1:2", "a:b", "-1:2", "0:1,"):
        with pytest.raises(InvalidValue, match="partition:broker"):
            validate_topic_configs({key: text})
