"""The settings of the group coordinator, with Kafka's names, types and defaults, and what a group
may override (the configuration resource GROUP).
"""

from collections.abc import Mapping
from typing import Final

from millstream.model.config.definition import (
    ConfigKey,
    ConfigType,
    Mode,
    Rule,
    Value,
    at_least,
)
from millstream.model.config.errors import InvalidConfig, RefusedConfig, UnknownConfig

_INT, _LONG, _SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT
_POSITIVE: Final = at_least(1)
_NOT_NEGATIVE: Final = at_least(0)

ASSIGNORS: Final = ("uniform", "range")
"""Kafka also takes classes; only these two are supported."""
MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
PROTOCOLS: Final = ("classic", "consumer", "streams", "share")

_ASSIGNORS: Final = Rule(
    "a non-empty list of uniform and/or range",
    lambda names: bool(names) and all(name in ASSIGNORS for name in names),
)
_POLICY: Final = Rule(
    f"one of {', '.join(MIGRATION_POLICIES)}", lambda name: name.lower() in MIGRATION_POLICIES
)
_PROTOCOLS: Final = Rule(
    "a list that contains classic and optionally consumer and streams",
    lambda names: "classic" in names and all(name in PROTOCOLS[:3] for name in names),
)

GROUP_COORDINATOR_ROWS: Final = (
    ConfigKey(
        "group.consumer.assignment.interval.ms",
        _INT,
        "1000",
        "The time between two computations of a consumer group's assignment.",
        _NOT_NEGATIVE,
        mode=Mode.CLUSTER_WIDE,
    ),
    ConfigKey(
        "group.consumer.assignors",
        ConfigType.LIST,
        "uniform,range",
        "How partitions are assigned to the members of a consumer group; the first is taken for"
        " members that name none.",
        _ASSIGNORS,
    ),
    ConfigKey(
        "group.consumer.heartbeat.interval.ms",
        _INT,
        "5000",
        "How often the members of a consumer group should send a heartbeat.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.consumer.max.assignment.interval.ms",
        _INT,
        "15000",
        "The longest consumer.assignment.interval.ms that a group may have.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "group.consumer.max.heartbeat.interval.ms",
        _INT,
        "15000",
        "The longest consumer.heartbeat.interval.ms that a group may have.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.consumer.max.session.timeout.ms",
        _INT,
        "60000",
        "The longest consumer.session.timeout.ms that a group may have.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.consumer.max.size",
        _INT,
        "2147483647",
        "Maximum number of members of a consumer group.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Which way a group with members may change between the classic and the consumer protocol.",
        _POLICY,
    ),
    ConfigKey(
        "group.consumer.min.assignment.interval.ms",
        _INT,
        "0",
        "The shortest consumer.assignment.interval.ms that a group may have.",
        _NOT_NEGATIVE,
    ),
    ConfigKey(
        "group.consumer.min.heartbeat.interval.ms",
        _INT,
        "5000",
        "The shortest consumer.heartbeat.interval.ms that a group may have.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.consumer.min.session.timeout.ms",
        _INT,
        "45000",
        "The shortest consumer.session.timeout.ms that a group may have.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.consumer.session.timeout.ms",
        _INT,
        "45000",
        "How long a member of a consumer group may be silent before it is removed from it.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.coordinator.append.linger.ms",
        _INT,
        "-1",
        "How long committed offsets wait for more, to be written as one batch: -1 until all"
        " requests of one event-loop iteration are handled, 0 not at all.",
        at_least(-1),
    ),
    ConfigKey(
        "group.coordinator.rebalance.protocols",
        ConfigType.LIST,
        "classic,consumer,streams",
        "The rebalance protocols; without consumer only the classic one is supported. Streams"
        " groups are not supported in any case.",
        _PROTOCOLS,
    ),
    ConfigKey(
        "group.initial.rebalance.delay.ms",
        _INT,
        "3000",
        "How long the first rebalance of an empty group waits for more members.",
    ),
    ConfigKey(
        "group.max.session.timeout.ms",
        _INT,
        "1800000",
        "The longest session timeout that a member of a classic group may request.",
    ),
    ConfigKey(
        "group.max.size",
        _INT,
        "2147483647",
        "Maximum number of members of a classic group.",
        _POSITIVE,
    ),
    ConfigKey(
        "group.min.session.timeout.ms",
        _INT,
        "6000",
        "The shortest session timeout that a member of a classic group may request.",
    ),
    ConfigKey(
        "offset.metadata.max.bytes",
        _INT,
        "4096",
        "The longest metadata string of a committed offset.",
    ),
    ConfigKey(
        "offsets.commit.timeout.ms",
        _INT,
        "5000",
        "How long a group's records may take until all in-sync replicas have them; after that the"
        " client gets a retriable error.",
        _POSITIVE,
    ),
    ConfigKey(
        "offsets.load.buffer.size",
        _INT,
        "5242880",
        "How much is read at a time while a partition of the offsets topic is loaded; a larger"
        " batch is still read.",
        _POSITIVE,
    ),
    ConfigKey(
        "offsets.retention.check.interval.ms",
        _LONG,
        "600000",
        "How often expired offsets are removed.",
        _POSITIVE,
    ),
    ConfigKey(
        "offsets.retention.minutes",
        _INT,
        "10080",
        "How long offsets are kept after their group became empty or unsubscribed from their"
        " topic; those of a consumer without subscription after their last commit.",
        _POSITIVE,
    ),
    ConfigKey(
        "offsets.topic.num.partitions",
        _INT,
        "50",
        "Partitions of the offsets topic when it is created.",
        _POSITIVE,
    ),
    ConfigKey(
        "offsets.topic.replication.factor",
        _SHORT,
        "3",
        "Replicas of the offsets topic when it is created; there must be as many brokers. A"
        " standalone broker creates one unless this is set.",
        _POSITIVE,
    ),
    ConfigKey(
        "offsets.topic.segment.bytes",
        _INT,
        "104857600",
        "Size of a segment of the offsets topic.",
        _POSITIVE,
    ),
)

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"

GROUP_KEYS: Final[Mapping[str, ConfigKey]] = {
    key.name: key
    for key in (
        ConfigKey(
            ASSIGNMENT_INTERVAL,
            _INT,
            "1000",
            "The time between two computations of the group's assignment.",
            _NOT_NEGATIVE,
            ("group.consumer.assignment.interval.ms",),
        ),
        ConfigKey(
            HEARTBEAT_INTERVAL,
            _INT,
            "5000",
            "How often the members of the group should send a heartbeat.",
            _POSITIVE,
            ("group.consumer.heartbeat.interval.ms",),
        ),
        ConfigKey(
            SESSION_TIMEOUT,
            _INT,
            "45000",
            "How long a member may be silent before it is removed from the group.",
            _POSITIVE,
            ("group.consumer.session.timeout.ms",),
        ),
    )
}
"""What a group may override, each with the broker's key that gives its default."""

REFUSED_GROUP_PREFIXES: Final[Mapping[str, str]] = {
    "share.": "share groups are not supported",
    "streams.": "streams groups are not supported",
}


def group_key(name: str) -> ConfigKey:
    """The key of this name; raises UnknownConfig or RefusedConfig."""
    key = GROUP_KEYS.get(name)
    if key is not None:
        return key
    for prefix, reason in REFUSED_GROUP_PREFIXES.items():
        if name.startswith(prefix):
            raise RefusedConfig(name, reason=reason)
    raise UnknownConfig(name, of="group", known=GROUP_KEYS)


_NOT_ABOVE: Final = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.min.assignment.interval.ms", "group.consumer.assignment.interval.ms"),
    ("group.consumer.assignment.interval.ms", "group.consumer.max.assignment.interval.ms"),
)
"""The first of each must not be above the second."""


def check_coordinator_values(values: Mapping[str, Value | None]) -> None:
    """Raise InvalidConfig unless a broker's settings of groups fit each other, by Kafka's rules."""
    for lower, upper in _NOT_ABOVE:
        if _number(values, lower) > _number(values, upper):
            raise InvalidConfig(
                f"{lower} is {values[lower]}: it must not be above {upper}, which is"
                f" {values[upper]}"
            )
    _check_session(
        heartbeat_ms=_number(values, "group.consumer.heartbeat.interval.ms"),
        session_ms=_number(values, "group.consumer.session.timeout.ms"),
        prefix="group.",
    )


def check_group_values(values: Mapping[str, Value], broker: Mapping[str, Value | None]) -> None:
    """Raise InvalidConfig unless a group may have these settings on brokers with those."""
    for name, value in values.items():
        kind = name.removeprefix("consumer.")
        lower, upper = f"group.consumer.min.{kind}", f"group.consumer.max.{kind}"
        if not _number(broker, lower) <= int(str(value)) <= _number(broker, upper):
            raise InvalidConfig(
                f"{name} is {value}: it must be between {lower} and {upper},"
                f" {broker[lower]} and {broker[upper]}"
            )
    both = {**broker, **{f"group.{name}": value for name, value in values.items()}}
    _check_session(
        heartbeat_ms=_number(both, f"group.{HEARTBEAT_INTERVAL}"),
        session_ms=_number(both, f"group.{SESSION_TIMEOUT}"),
        prefix="",
    )


def _check_session(*, heartbeat_ms: int, session_ms: int, prefix: str) -> None:
    if session_ms <= heartbeat_ms:
        raise InvalidConfig(
            f"{prefix}{SESSION_TIMEOUT} is {session_ms}: it must be more than"
            f" {prefix}{HEARTBEAT_INTERVAL}, which is {heartbeat_ms}"
        )


def _number(values: Mapping[str, Value | None], name: str) -> int:
    value = values[name]
    return value if isinstance(value, int) else 0
