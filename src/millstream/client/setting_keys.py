"""The client's settings with Kafka's names, types, rules and defaults (those of Kafka 4.3).

Where Kafka's consumer, producer and admin client have different defaults for one name, the
consumer's is used.
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
        "Comma-separated host:port addresses for the first connection to the cluster.",
    ),
    ConfigKey("client.id", _TEXT, "", "Name of the client in brokers' logs and quotas."),
    ConfigKey("client.rack", _TEXT, "", "Rack of this client, to read from the closest replica."),
    ConfigKey(
        "security.protocol",
        _TEXT,
        "PLAINTEXT",
        "Protocol to talk to brokers; only PLAINTEXT is supported.",
    ),
    # -- time
    ConfigKey(
        "default.api.timeout.ms",
        _INT,
        "60000",
        "Timeout of a call that has no timeout of its own.",
        at_least(0),
    ),
    ConfigKey(
        "request.timeout.ms",
        _INT,
        "30000",
        "How long a request waits for its response before its connection is closed.",
        at_least(1),
    ),
    ConfigKey(
        "socket.connection.setup.timeout.ms",
        _LONG,
        "10000",
        "How long opening a connection may take.",
        at_least(1),
    ),
    ConfigKey(
        "connections.max.idle.ms",
        _LONG,
        "540000",
        "Idle time after which a connection is closed; -1 means never.",
        at_least(-1),
    ),
    ConfigKey(
        "reconnect.backoff.ms",
        _LONG,
        "50",
        "Backoff after the first failed connection.",
        at_least(0),
    ),
    ConfigKey(
        "reconnect.backoff.max.ms",
        _LONG,
        "1000",
        "Maximum backoff between connections.",
        at_least(0),
    ),
    ConfigKey(
        "retry.backoff.ms", _LONG, "100", "Backoff before a request is retried.", at_least(0)
    ),
    ConfigKey(
        "retry.backoff.max.ms", _LONG, "1000", "Maximum backoff between attempts.", at_least(0)
    ),
    ConfigKey(
        "metadata.max.age.ms",
        _LONG,
        "300000",
        "Age after which metadata is refreshed even if nothing went wrong.",
        at_least(0),
    ),
    ConfigKey(
        "metadata.max.idle.ms",
        _LONG,
        "300000",
        "Idle time after which a topic is dropped from the metadata.",
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
    ConfigKey("fetch.min.bytes", _INT, "1", "Minimum bytes that a fetch waits for.", at_least(0)),
    ConfigKey("fetch.max.bytes", _INT, "52428800", "Maximum bytes of a fetch.", at_least(0)),
    ConfigKey("fetch.max.wait.ms", _INT, "500", "How long a fetch waits at most.", at_least(0)),
    ConfigKey(
        "max.partition.fetch.bytes",
        _INT,
        "1048576",
        "Maximum bytes of one partition in a fetch; at least one batch is returned.",
        at_least(0),
    ),
    ConfigKey(
        "prefetch.max.bytes",
        _LONG,
        "16777216",
        "Maximum bytes of fetched records that a read buffers; at least one batch is fetched.",
        at_least(1),
    ),
    ConfigKey("check.crcs", _TRUTH, "true", "Whether the checksums of batches are verified."),
    # -- writing
    ConfigKey(
        "acks",
        _TEXT,
        "all",
        "Which replicas must have a record before it is acknowledged.",
        one_of(*ACKS),
    ),
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
        "Produce requests in flight to one broker; at most 5 with idempotence.",
        at_least(1),
    ),
    ConfigKey("compression.type", _TEXT, "none", "Compression of batches.", one_of(*CODEC_NAMES)),
    ConfigKey("compression.gzip.level", _INT, "-1", "Compression level of gzip.", _GZIP_LEVELS),
    ConfigKey("compression.lz4.level", _INT, "9", "Compression level of lz4.", between(1, 17)),
    ConfigKey(
        "compression.zstd.level", _INT, "3", "Compression level of zstd.", between(-131072, 22)
    ),
    ConfigKey("batch.size", _INT, "16384", "Bytes of a batch before compression.", at_least(0)),
    ConfigKey("linger.ms", _LONG, "5", "How long a batch waits for more records.", at_least(0)),
    ConfigKey(
        "buffer.memory", _LONG, "33554432", "Maximum bytes that wait to be sent.", at_least(0)
    ),
    ConfigKey("max.block.ms", _LONG, "60000", "How long a send waits for memory.", at_least(0)),
    ConfigKey(
        "max.request.size", _INT, "1048576", "Maximum bytes of one produce request.", at_least(0)
    ),
    ConfigKey(
        "delivery.timeout.ms",
        _INT,
        "120000",
        "Time within which a record is acknowledged or fails; at least linger.ms +"
        " request.timeout.ms.",
        at_least(0),
    ),
)

CLIENT_KEYS: Final = {key.name: key for key in _ROWS}


def field_name(key: str) -> str:
    """The attribute of ClientSettings for a key."""
    return key.replace(".", "_")
