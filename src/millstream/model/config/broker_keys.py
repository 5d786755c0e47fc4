"""The settings of a broker that it obeys: Kafka's, and a few of our own.

Where our default differs from Kafka's the documentation says so. A topic's default is a broker's
key too, and takes its type, rule and text from the topic's key.
"""

from collections.abc import Mapping
from typing import Final

from millstream.model.config.cluster_keys import CLUSTER_ROWS
from millstream.model.config.definition import (
    ConfigKey,
    ConfigType,
    Mode,
    Rule,
    at_least,
    one_of,
)
from millstream.model.config.group_keys import GROUP_COORDINATOR_ROWS
from millstream.model.config.later_keys import LATER_KEYS
from millstream.model.config.topic_keys import LONG_MAX, TOPIC_KEYS
from millstream.model.limits import KIB, MIB, REQUEST_BYTES_MIN, REQUEST_MEMORY_BYTES

INT_MAX: Final = "2147483647"
NODE_ID: Final = "node.id"
BROKER_ID: Final = "broker.id"
LISTENER_PREFIX: Final = "listener.name."

_BOOLEAN, _STRING = ConfigType.BOOLEAN, ConfigType.STRING
_INT, _LONG, _LIST = ConfigType.INT, ConfigType.LONG, ConfigType.LIST

LOG_LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")

_NOT_ZERO: Final = Rule("-1 for no limit, or at least 1", lambda value: value != 0)
_PORT: Final = Rule("between 0 and 65535, or -1 for none", lambda port: -1 <= port <= 65_535)


def is_override(text: str) -> bool:
    """Whether the text is `address:count`, an entry of `max.connections.per.ip.overrides`."""
    from ipaddress import ip_address

    host, _, count = text.strip().rpartition(":")
    try:
        ip_address(host.strip())
    except ValueError:
        return False
    return count.isascii() and count.isdigit()


def has_room_in(overrides: str) -> bool:
    """Whether `max.connections.per.ip.overrides` lets any address connect at all."""
    counts = (one.rpartition(":")[2] for one in overrides.split(",") if one.strip())
    return any(int(count) > 0 for count in counts)


_OVERRIDES: Final = Rule(
    "a comma-separated list of address:count, where address is an IP address",
    lambda text: all(is_override(part) for part in text.split(",")) if text.strip() else True,
)

_OWN_ROWS: Final = (
    ConfigKey(
        "advertised.listeners",
        _LIST,
        None,
        "Addresses that are advertised to clients, by listener; without it the address at which"
        " each client reached the broker.",
    ),
    ConfigKey(
        "auto.create.topics.enable",
        _BOOLEAN,
        "true",
        "Whether a missing topic is created when a client requests its metadata and allows it.",
    ),
    ConfigKey(
        BROKER_ID,
        _INT,
        "-1",
        "Alias of node.id.",
    ),
    ConfigKey(
        "broker.rack",
        _STRING,
        None,
        "Rack of the broker, which clients and the placement of replicas use.",
    ),
    ConfigKey(
        "connections.max.idle.ms",
        _LONG,
        "600000",
        "A connection without a request for this long is closed; negative never closes one.",
    ),
    ConfigKey(
        "default.replication.factor",
        _INT,
        "1",
        "Replicas of topics that are created without a number.",
    ),
    ConfigKey(
        "delete.topic.enable",
        _BOOLEAN,
        "true",
        "Whether topics may be deleted.",
    ),
    ConfigKey(
        "fetch.max.bytes",
        _INT,
        str(55 * MIB),
        "Maximum bytes that one Fetch response carries, whatever the client's own limit; a first"
        " batch that is larger is still sent.",
        at_least(1024),
    ),
    ConfigKey(
        "listener.security.protocol.map",
        _STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Security protocol of each listener name; a listener must have PLAINTEXT.",
    ),
    ConfigKey(
        "listeners",
        _LIST,
        "PLAINTEXT://:9092",
        "Where the broker listens, as NAME://host:port; port 0 lets the system choose.",
    ),
    ConfigKey(
        "log.cleaner.backoff.ms",
        _LONG,
        "15000",
        "How long the cleaner waits before it checks again for logs to clean.",
        at_least(0),
        mode=Mode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "log.cleaner.dedupe.buffer.size",
        _LONG,
        str(128 * MIB),
        "Memory for the keys of one cleaning; a log with more is cleaned in several.",
        at_least(MIB),
    ),
    ConfigKey(
        "log.cleaner.enable",
        _BOOLEAN,
        "true",
        "Whether topics with cleanup.policy compact are cleaned.",
    ),
    ConfigKey(
        "log.cleaner.io.max.bytes.per.second",
        ConfigType.DOUBLE,
        "1.7976931348623157E308",
        "Maximum bytes per second that the cleaner reads and writes together.",
        Rule("above 0", lambda rate: rate > 0),
        mode=Mode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "log.dir",
        _LIST,
        "data",
        "Directory of the logs where log.dirs is not set; relative to the working directory.",
    ),
    ConfigKey(
        "log.dirs",
        _LIST,
        None,
        "Directories of the logs; a new partition goes where the fewest are.",
    ),
    ConfigKey(
        "log.flush.offset.checkpoint.interval.ms",
        _INT,
        "60000",
        "How often recovery points and start offsets are stored, which bounds what is read again"
        " after a crash.",
        at_least(0),
    ),
    ConfigKey(
        "log.flush.scheduler.interval.ms",
        _LONG,
        LONG_MAX,
        "Default of flush.ms where log.flush.interval.ms is not set; due flushes are checked for"
        " every second.",
    ),
    ConfigKey(
        "log.level",
        _STRING,
        "INFO",
        "Level of the broker's own log lines at the start; the loggers can be changed while it"
        " runs.",
        one_of(*LOG_LEVELS),
    ),
    ConfigKey(
        "log.retention.check.interval.ms",
        _LONG,
        "300000",
        "How often logs are checked for segments to remove.",
        at_least(1),
    ),
    ConfigKey(
        "log.retention.hours",
        _INT,
        "168",
        "Default of retention.ms in hours, where neither milliseconds nor minutes are set.",
        _NOT_ZERO,
    ),
    ConfigKey(
        "log.retention.minutes",
        _INT,
        None,
        "Default of retention.ms in minutes, where no milliseconds are set.",
        _NOT_ZERO,
    ),
    ConfigKey(
        "log.roll.hours",
        _INT,
        "168",
        "Default of segment.ms in hours, where no milliseconds are set.",
        at_least(1),
    ),
    ConfigKey(
        "log.roll.jitter.hours",
        _INT,
        "0",
        "Default of segment.jitter.ms in hours, where no milliseconds are set.",
        at_least(0),
    ),
    ConfigKey(
        "max.connections",
        _INT,
        INT_MAX,
        "Maximum number of connections at a time, besides those of brokers; a further one is"
        " closed, except a few of an administrator on the broker's machine.",
        at_least(1),
        mode=Mode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "max.connections.per.ip",
        _INT,
        INT_MAX,
        "Maximum number of connections at a time from one address, besides those of brokers; a"
        " further one is closed, as with max.connections.",
        at_least(0),
        mode=Mode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "max.connections.per.ip.overrides",
        _STRING,
        "",
        "Other limits than max.connections.per.ip for single addresses, as address:count.",
        _OVERRIDES,
        mode=Mode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "max.incremental.fetch.session.cache.slots",
        _INT,
        "1000",
        "Maximum number of fetch sessions; a client without one names all its partitions in every"
        " request.",
        at_least(0),
    ),
    ConfigKey(
        "max.request.partition.size.limit",
        _INT,
        "2000",
        "Maximum number of partitions in one DescribeTopicPartitions response.",
        at_least(1),
    ),
    ConfigKey(
        "metrics.port",
        _INT,
        "-1",
        "Port on which metrics can be read as Prometheus text; 0 lets the system choose, -1 opens"
        " none.",
        _PORT,
    ),
    ConfigKey(
        NODE_ID,
        _INT,
        "1",
        "Id of the broker, unique in the cluster.",
        at_least(0),
    ),
    ConfigKey(
        "num.partitions",
        _INT,
        "1",
        "Partitions of topics that are created without a number.",
        at_least(1),
    ),
    ConfigKey(
        "pid.file",
        _STRING,
        None,
        "File that holds the process id while the broker runs.",
    ),
    ConfigKey(
        "producer.id.expiration.ms",
        _INT,
        "86400000",
        "An idempotent producer that wrote nothing for this long is forgotten.",
        at_least(1),
        mode=Mode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "queued.max.request.bytes",
        _LONG,
        str(REQUEST_MEMORY_BYTES),
        "What requests may take in memory: their bytes, their decoded form, decompressed batches"
        " and answers that were not taken. Beyond three quarters of it connections wait, beyond all"
        " of it those that hold most for longest are closed. 0 or less: no limit. A smaller value"
        " than four thirds of socket.request.max.bytes, plus 1 MiB, counts as that much.",
    ),
    ConfigKey(
        "replica.alter.log.dirs.io.max.bytes.per.second",
        _LONG,
        LONG_MAX,
        "Maximum bytes per second that are copied while partitions move between log directories;"
        " the last mebibyte of a move does not wait. 0 holds moves back.",
        at_least(0),
        mode=Mode.CLUSTER_WIDE,
        is_dynamic_only=True,
    ),
    ConfigKey(
        "socket.request.max.bytes",
        _INT,
        str(100 * MIB),
        "The largest request; a connection that announces more is closed.",
        at_least(REQUEST_BYTES_MIN),
    ),
    ConfigKey(
        "socket.send.buffer.bytes",
        _INT,
        str(256 * KIB),
        "Size of a connection's send buffer (the kernel takes twice that); -1 lets it grow as far"
        " as the system allows, for clients that are far away.",
    ),
    ConfigKey(
        "transaction.max.timeout.ms",
        _INT,
        "900000",
        "The longest timeout that a transactional producer may request.",
        at_least(1),
    ),
)

OWN_KEYS: Final = frozenset({"log.level", "metrics.port", "pid.file"})
"""Not Kafka's."""

FALLBACKS: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "log.dirs": (("log.dir", 1),),
    "log.flush.interval.ms": (("log.flush.scheduler.interval.ms", 1),),
    "log.retention.ms": (("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000)),
    "log.roll.jitter.ms": (("log.roll.jitter.hours", 3_600_000),),
    "log.roll.ms": (("log.roll.hours", 3_600_000),),
}
"""Where a key that is not set takes its value from, and by how much that is multiplied."""

_RULES_OF_TIMES: Final = {"log.retention.ms": _NOT_ZERO}
"""A broker's default of retention.ms cannot be 0, although a topic's own may."""


def _topic_default(topic_key: ConfigKey) -> ConfigKey:
    """The broker's key that gives the default of a topic's."""
    name = topic_key.synonyms[0]
    return topic_key._replace(
        name=name,
        default=None if name in FALLBACKS else topic_key.default,
        documentation=f"Default of {topic_key.name} for topics without their own."
        if name != topic_key.name
        else f"For topics without their own: {topic_key.documentation}",
        rule=_RULES_OF_TIMES.get(name, topic_key.rule),
        synonyms=(),
        mode=Mode.CLUSTER_WIDE,
    )


def _all_keys() -> dict[str, ConfigKey]:
    keys = {key.name: key for key in (*_OWN_ROWS, *CLUSTER_ROWS, *GROUP_COORDINATOR_ROWS)}
    for topic_key in TOPIC_KEYS.values():
        if topic_key.synonyms:
            default = _topic_default(topic_key)
            keys[default.name] = default
    return dict(sorted(keys.items()))


BROKER_KEYS: Final[Mapping[str, ConfigKey]] = _all_keys()


def broker_key(name: str) -> ConfigKey:
    """The key of this name, also of one without effect: a broker keeps unknown settings."""
    key = BROKER_KEYS.get(name) or LATER_KEYS.get(name)
    if key is not None:
        return key
    from millstream.model.config.inert_keys import inert_broker_key  # hardly any broker has one

    return inert_broker_key(name)


def synonyms_of(name: str) -> tuple[str, ...]:
    """The key and those it falls back to, in order of precedence."""
    if name in _GROUPS:
        return _GROUPS[name]
    if name.startswith(LISTENER_PREFIX):
        from millstream.model.config.inert_keys import listener_base

        base = listener_base(name)
        return (name,) if base is None else (name, base)
    return (name,)


def _groups() -> dict[str, tuple[str, ...]]:
    """As Kafka names them: times have one group for all their units."""
    groups = {}
    for first, others in FALLBACKS.items():
        if first == "log.dirs":
            continue
        names = (first, *(name for name, _ in others))
        groups[first] = names
        if first != "log.flush.interval.ms":
            groups.update(dict.fromkeys(names[1:], names))
    return groups


_GROUPS: Final = _groups()
