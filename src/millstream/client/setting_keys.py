"""The client's settings with Kafka's names, types, rules and defaults (those of Kafka 4.3).

Where Kafka's consumer, producer and admin have different defaults for one name, it is the
consumer's.
"""

from typing import Final

from millstream.model.config.definition import (
    ConfigKey,
    ConfigType,
    Rule,
    at_least,
    between,
    one_of,
)

_INT, _LONG, _TEXT, _TRUTH = (
    ConfigType.INT,
    ConfigType.LONG,
    ConfigType.STRING,
    ConfigType.BOOLEAN,
)
_GZIP_LEVELS: Final = Rule(
    "between 1 and 9, or -1 for the codec's own default",
    lambda level: 1 <= level <= 9 or level == -1,
)
ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}
ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

_ROWS: Final = (
    ConfigKey(
        "bootstrap.servers",
        ConfigType.LIST,
        None,
        "Addresses (host:port, with commas between) through which the cluster is found.",
    ),
    ConfigKey("client.id", _TEXT, "", "The name that brokers see in their logs and quotas."),
    ConfigKey("client.rack", _TEXT, "", "Where this client is, to read from a replica near it."),
    ConfigKey(
        "security.protocol",
        _TEXT,
        "PLAINTEXT",
        "How brokers are talked to; PLAINTEXT alone so far.",
    ),
    # -- time
    ConfigKey(
        "default.api.timeout.ms",
        _INT,
        "60000",
        "Within what time a call ends that names no other, with an answer or an error.",
        at_least(0),
    ),
    ConfigKey(
        "request.timeout.ms",
        _INT,
        "30000",
        "How long one request waits for its answer before its connection is given up.",
        at_least(1),
    ),
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        _LONG,
        "10000",
        "How long making a connection may take.",
        at_least(1),
    ),
    ConfigKey(
        "connections.max.idle.ms",
        _LONG,
        "540000",
        "After what time without use a connection is closed; -1 is never.",
        at_least(-1),
    ),
    ConfigKey(
        "reconnect.backoff.ms", _LONG, "50", "Pause after the first failed connection.", at_least(0)
    ),
    ConfigKey(
        "reconnect.backoff.max.ms", _LONG, "1000", "Longest pause between connections.", at_least(0)
    ),
    ConfigKey(
        "retry.backoff.ms", _LONG, "100", "Pause before a request is tried again.", at_least(0)
    ),
    ConfigKey(
        "retry.backoff.max.ms", _LONG, "1000", "Longest pause between attempts.", at_least(0)
    ),
    ConfigKey(
        "metadata.max.age.ms",
        _LONG,
        "300000",
        "After what time topics and leaders are asked for again even if nothing went wrong.",
        at_least(0),
    ),
    ConfigKey(
        "metadata.max.idle.ms",
        _LONG,
        "300000",
        "After what time without use a topic is forgotten.",
        at_least(5000),
    ),
    # -- reading
    ConfigKey(
        "isolation.level",
        _TEXT,
        "read_uncommitted",
        "Whether records of open and aborted transactions are read.",
        one_of(*ISOLATION_LEVELS),
    ),
    ConfigKey("fetch.min.bytes", _INT, "1", "What a fetch waits for.", at_least(0)),
    ConfigKey("fetch.max.bytes", _INT, "52428800", "What a fetch brings at most.", at_least(0)),
    ConfigKey("fetch.max.wait.ms", _INT, "500", "How long a fetch waits at most.", at_least(0)),
    ConfigKey(
        "max.partition.fetch.bytes",
        _INT,
        "1048576",
        "What a fetch brings of one partition at most; one batch comes in any case.",
        at_least(0),
    ),
    ConfigKey(
        "prefetch.max.bytes",
        _LONG,
        "16777216",
        "What a read holds of answers that nobody took yet, at most; one batch comes in any case.",
        at_least(1),
    ),
    ConfigKey("check.crcs", _TRUTH, "true", "Whether the checksums of batches are verified."),
    # -- writing
    ConfigKey("acks", _TEXT, "all", "Who must have a record before it counts.", one_of(*ACKS)),
    ConfigKey(
        "enable.idempotence",
        _TRUTH,
        "true",
        "Whether a record that is sent twice is stored once; needs acks=all.",
    ),
    ConfigKey(
        "max.in.flight.requests.per.connection",
        _INT,
        "5",
        "Produce requests under way to one broker; at most 5 with idempotence.",
        at_least(1),
    ),
    ConfigKey("compression.type", _TEXT, "none", "How batches are packed.", one_of(*CODEC_NAMES)),
    ConfigKey("compression.gzip.level", _INT, "-1", "How hard gzip tries.", _GZIP_LEVELS),
    ConfigKey("compression.lz4.level", _INT, "9", "How hard lz4 tries.", between(1, 17)),
    ConfigKey("compression.zstd.level", _INT, "3", "How hard zstd tries.", between(-131072, 22)),
    ConfigKey("batch.size", _INT, "16384", "Bytes of a batch before it is packed.", at_least(0)),
    ConfigKey("linger.ms", _LONG, "5", "How long a batch waits for more records.", at_least(0)),
    ConfigKey("buffer.memory", _LONG, "33554432", "Bytes that may wait to be sent.", at_least(0)),
    ConfigKey("max.block.ms", _LONG, "60000", "How long a send waits for memory.", at_least(0)),
    ConfigKey("max.request.size", _INT, "1048576", "Bytes of one produce request.", at_least(0)),
    ConfigKey(
        "delivery.timeout.ms",
        _INT,
        "120000",
        "Within what time a record is stored or given up; at least linger.ms and"
        " request.timeout.ms together.",
        at_least(0),
    ),
)

CLIENT_KEYS: Final = {key.name: key for key in _ROWS}


def field_name(key: str) -> str:
    """Of the attribute of ClientSettings that holds the key's value."""
    return key.replace(".", "_")
