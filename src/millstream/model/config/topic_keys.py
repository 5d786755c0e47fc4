"""The settings of a topic that this broker obeys, with Kafka's names, types and defaults.

Kafka's other topic keys are in `inert_keys.py`, with the reasons in `inert_reasons.py`.
"""

import re
from collections.abc import Mapping
from typing import Final

from millstream.model.config.definition import (
    ConfigKey,
    ConfigType,
    Rule,
    Value,
    at_least,
    between,
    each_of,
    one_of,
)
from millstream.model.config.errors import InvalidConfig, UnknownConfig
from millstream.model.config.inert_reasons import INERT_TOPIC_REASONS
from millstream.model.limits import MIB

LONG_MAX: Final = "9223372036854775807"
CODEC_NAMES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
GZIP_DEFAULT_LEVEL: Final = -1

MIN_COMPACTION_LAG: Final = "min.compaction.lag.ms"
MAX_COMPACTION_LAG: Final = "max.compaction.lag.ms"

_GZIP_LEVELS: Final = Rule(
    "between 1 and 9, or -1 for the codec's own default",
    lambda level: 1 <= level <= 9 or level == GZIP_DEFAULT_LEVEL,
)
_REPLICA: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
_REPLICAS: Final = Rule(
    "* or a list of partition:broker",
    lambda values: values == ["*"] or all(_REPLICA.fullmatch(one) for one in values),
)
_INT, _LONG = ConfigType.INT, ConfigType.LONG

_ROWS: Final = (
    ConfigKey(
        "cleanup.policy",
        ConfigType.LIST,
        "delete",
        "What happens to old records: delete removes whole segments by age or size, compact keeps"
        " the last record of each key, both may be given, and an empty list keeps everything.",
        each_of("compact", "delete"),
        ("log.cleanup.policy",),
    ),
    ConfigKey(
        "compression.gzip.level",
        _INT,
        str(GZIP_DEFAULT_LEVEL),
        "Level at which the broker compresses where compression.type is gzip.",
        _GZIP_LEVELS,
        ("compression.gzip.level",),
    ),
    ConfigKey(
        "compression.lz4.level",
        _INT,
        "9",
        "Level at which the broker compresses where compression.type is lz4.",
        between(1, 17),
        ("compression.lz4.level",),
    ),
    ConfigKey(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "Codec of the stored batches: producer keeps each as it came, any other makes the broker"
        " compress again what came in another codec.",
        one_of(*CODEC_NAMES),
        ("compression.type",),
    ),
    ConfigKey(
        "compression.zstd.level",
        _INT,
        "3",
        "Level at which the broker compresses where compression.type is zstd.",
        between(-131_072, 22),
        ("compression.zstd.level",),
    ),
    ConfigKey(
        "delete.retention.ms",
        _LONG,
        "86400000",
        "How long a compacted topic keeps tombstones after they were first cleaned, so that slow"
        " readers see the deletion.",
        at_least(0),
        ("log.cleaner.delete.retention.ms",),
    ),
    ConfigKey(
        "file.delete.delay.ms",
        _LONG,
        "60000",
        "How long the files of a removed segment stay on disk under another name.",
        at_least(0),
        ("log.segment.delete.delay.ms",),
    ),
    ConfigKey(
        "flush.messages",
        _LONG,
        LONG_MAX,
        "The log is flushed to disk when this many records were appended since the last flush.",
        at_least(1),
        ("log.flush.interval.messages",),
    ),
    ConfigKey(
        "flush.ms",
        _LONG,
        LONG_MAX,
        "The log is flushed to disk when its oldest unflushed record is this old.",
        at_least(0),
        ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    ),
    ConfigKey(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas, as partition:broker, that get their records no faster than their broker's"
        " follower.replication.throttled.rate while they are not in sync; * is all of them.",
        _REPLICAS,
    ),
    ConfigKey(
        "index.interval.bytes",
        _INT,
        "4096",
        "Bytes of records between two entries of the offset index: fewer make it larger and a seek"
        " more exact.",
        at_least(0),
        ("log.index.interval.bytes",),
    ),
    ConfigKey(
        "internal.segment.bytes",
        _INT,
        None,
        "Size of a segment file without the lower bound of segment.bytes, for tests.",
        at_least(1),
        is_internal=True,
    ),
    ConfigKey(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        "",
        "Replicas, as partition:broker, that send records to those which are not in sync no faster"
        " than their broker's leader.replication.throttled.rate while they lead; * is all of them.",
        _REPLICAS,
    ),
    ConfigKey(
        MAX_COMPACTION_LAG,
        _LONG,
        LONG_MAX,
        "A record of a compacted topic becomes eligible for cleaning at the latest when it is"
        " this old, whatever the share of dirty records.",
        at_least(1),
        ("log.cleaner.max.compaction.lag.ms",),
    ),
    ConfigKey(
        "max.message.bytes",
        _INT,
        "1048588",
        "The largest record batch that is accepted, in bytes as it is stored.",
        at_least(0),
        ("message.max.bytes",),
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        _LONG,
        "3600000",
        "How far a producer's timestamp may lie in the future; records beyond it are refused.",
        at_least(0),
        ("log.message.timestamp.after.max.ms",),
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        _LONG,
        LONG_MAX,
        "How far a producer's timestamp may lie in the past; records beyond it are refused.",
        at_least(0),
        ("log.message.timestamp.before.max.ms",),
    ),
    ConfigKey(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Which timestamp records carry: the producer's (CreateTime) or the broker's at the append"
        " (LogAppendTime).",
        one_of(*TIMESTAMP_TYPES),
        ("log.message.timestamp.type",),
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        "0.5",
        "Share of a compacted log that must be dirty before it is cleaned.",
        between(0, 1),
        ("log.cleaner.min.cleanable.ratio",),
    ),
    ConfigKey(
        MIN_COMPACTION_LAG,
        _LONG,
        "0",
        "A record of a compacted topic stays as it is for at least this long.",
        at_least(0),
        ("log.cleaner.min.compaction.lag.ms",),
    ),
    ConfigKey(
        "min.insync.replicas",
        _INT,
        "1",
        "Replicas that must be in sync for a write with acks=all; never more than the topic has.",
        at_least(1),
        ("min.insync.replicas",),
    ),
    ConfigKey(
        "retention.bytes",
        _LONG,
        "-1",
        "Size of a partition above which its oldest segments are removed; negative is no limit.",
        None,
        ("log.retention.bytes",),
    ),
    ConfigKey(
        "retention.ms",
        _LONG,
        "604800000",
        "Age above which segments are removed where cleanup.policy has delete; -1 is no limit.",
        at_least(-1),
        ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    ),
    ConfigKey(
        "segment.bytes",
        _INT,
        "1073741824",
        "Size at which a segment file is closed and a new one begun.",
        at_least(MIB),
        ("log.segment.bytes",),
    ),
    ConfigKey(
        "segment.index.bytes",
        _INT,
        "10485760",
        "Size at which an index is full, which also closes its segment; there is always room for"
        " one entry.",
        at_least(4),
        ("log.index.size.max.bytes",),
    ),
    ConfigKey(
        "segment.jitter.ms",
        _LONG,
        "0",
        "A random time up to this is subtracted from segment.ms, so that segments do not all"
        " roll at once.",
        at_least(0),
        ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    ),
    ConfigKey(
        "segment.ms",
        _LONG,
        "604800000",
        "Age at which a segment is closed even when it is not full.",
        at_least(1),
        ("log.roll.ms", "log.roll.hours"),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        "false",
        "Whether a replica that is not in sync may lead when no other is left, which loses what it"
        " does not have; such an election is reported.",
        None,
        ("unclean.leader.election.enable",),
    ),
)

TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = {key.name: key for key in _ROWS}


def parse_topic_configs(configs: Mapping[str, str]) -> dict[str, Value]:
    """The values of a topic's own settings; raises InvalidConfig."""
    return {name: topic_key(name).parse(text) for name, text in configs.items()}


def topic_key(name: str) -> ConfigKey:
    """The key of this name, also of one without effect; raises UnknownConfig."""
    key = TOPIC_KEYS.get(name)
    if key is not None:
        return key
    if name in INERT_TOPIC_REASONS:
        from millstream.model.config.inert_keys import INERT_TOPIC_KEYS  # hardly any topic has one

        return INERT_TOPIC_KEYS[name]
    raise UnknownConfig(name, of="topic", known=(*TOPIC_KEYS, *INERT_TOPIC_REASONS))


def validate_topic_configs(
    configs: Mapping[str, str], defaults: Mapping[str, Value | None] | None = None
) -> None:
    """Raise InvalidConfig unless a topic may have these settings.

    `defaults` are what the broker gives for keys that are not set, as far as it gives any.
    """
    values = parse_topic_configs(configs)
    check_together({**(defaults or {}), **values})


def check_together(values: Mapping[str, Value | None]) -> None:
    """Rules over several of a topic's settings; raises InvalidConfig."""
    shortest = values.get(MIN_COMPACTION_LAG)
    longest = values.get(MAX_COMPACTION_LAG)
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        raise InvalidConfig(
            f"{MIN_COMPACTION_LAG} ({shortest}) must not be above {MAX_COMPACTION_LAG} ({longest})"
        )
