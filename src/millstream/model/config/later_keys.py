"""Kafka's broker keys for what comes with groups and transactions.

A settings file may have them already and a wrong value is told, but nothing reads them yet; so they
are not described to clients. A key moves to `broker_keys.py` with the code that obeys it.
"""

from collections.abc import Mapping
from typing import Final

from millstream.model.config.definition import ConfigKey, ConfigType, Rule, at_least

_GROUPS: Final = "consumer groups"
_TRANSACTIONS: Final = "transactions"

_INT, _LONG, _SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT
_POSITIVE: Final = at_least(1)
_NOT_NEGATIVE: Final = at_least(0)

_ROWS: Final[tuple[tuple[str, ConfigType, str | None, Rule | None, str], ...]] = (
    ("add.partitions.to.txn.retry.backoff.max.ms", _INT, "100", _NOT_NEGATIVE, _TRANSACTIONS),
    ("add.partitions.to.txn.retry.backoff.ms", _INT, "20", _POSITIVE, _TRANSACTIONS),
    ("group.consumer.assignment.interval.ms", _INT, "1000", _NOT_NEGATIVE, _GROUPS),
    ("group.consumer.assignors", ConfigType.LIST, "uniform,range", None, _GROUPS),
    ("group.consumer.heartbeat.interval.ms", _INT, "5000", _POSITIVE, _GROUPS),
    ("group.consumer.max.assignment.interval.ms", _INT, "15000", _NOT_NEGATIVE, _GROUPS),
    ("group.consumer.max.heartbeat.interval.ms", _INT, "15000", _POSITIVE, _GROUPS),
    ("group.consumer.max.session.timeout.ms", _INT, "60000", _POSITIVE, _GROUPS),
    ("group.consumer.max.size", _INT, "2147483647", _POSITIVE, _GROUPS),
    ("group.consumer.migration.policy", ConfigType.STRING, "bidirectional", None, _GROUPS),
    ("group.consumer.min.assignment.interval.ms", _INT, "0", _NOT_NEGATIVE, _GROUPS),
    ("group.consumer.min.heartbeat.interval.ms", _INT, "5000", _POSITIVE, _GROUPS),
    ("group.consumer.min.session.timeout.ms", _INT, "45000", _POSITIVE, _GROUPS),
    ("group.consumer.session.timeout.ms", _INT, "45000", _POSITIVE, _GROUPS),
    ("group.coordinator.append.linger.ms", _INT, "-1", at_least(-1), _GROUPS),
    ("group.coordinator.background.threads", _INT, "2", _POSITIVE, _GROUPS),
    ("group.coordinator.cached.buffer.max.bytes", _INT, "1048588", at_least(524_288), _GROUPS),
    (
        "group.coordinator.rebalance.protocols",
        ConfigType.LIST,
        "classic,consumer,streams",
        None,
        _GROUPS,
    ),
    ("group.coordinator.threads", _INT, "4", _POSITIVE, _GROUPS),
    ("group.initial.rebalance.delay.ms", _INT, "3000", None, _GROUPS),
    ("group.max.session.timeout.ms", _INT, "1800000", None, _GROUPS),
    ("group.max.size", _INT, "2147483647", _POSITIVE, _GROUPS),
    ("group.min.session.timeout.ms", _INT, "6000", None, _GROUPS),
    ("offset.metadata.max.bytes", _INT, "4096", None, _GROUPS),
    ("offsets.commit.timeout.ms", _INT, "5000", _POSITIVE, _GROUPS),
    ("offsets.load.buffer.size", _INT, "5242880", _POSITIVE, _GROUPS),
    ("offsets.retention.check.interval.ms", _LONG, "600000", _POSITIVE, _GROUPS),
    ("offsets.retention.minutes", _INT, "10080", _POSITIVE, _GROUPS),
    ("offsets.topic.num.partitions", _INT, "50", _POSITIVE, _GROUPS),
    ("offsets.topic.replication.factor", _SHORT, "3", _POSITIVE, _GROUPS),
    ("offsets.topic.segment.bytes", _INT, "104857600", _POSITIVE, _GROUPS),
    (
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _INT,
        "10000",
        _POSITIVE,
        _TRANSACTIONS,
    ),
    ("transaction.partition.verification.enable", ConfigType.BOOLEAN, "true", None, _TRANSACTIONS),
    (
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _INT,
        "3600000",
        _POSITIVE,
        _TRANSACTIONS,
    ),
    ("transaction.state.log.load.buffer.size", _INT, "5242880", _POSITIVE, _TRANSACTIONS),
    ("transaction.state.log.min.isr", _INT, "2", _POSITIVE, _TRANSACTIONS),
    ("transaction.state.log.num.partitions", _INT, "50", _POSITIVE, _TRANSACTIONS),
    ("transaction.state.log.replication.factor", _SHORT, "3", _POSITIVE, _TRANSACTIONS),
    ("transaction.state.log.segment.bytes", _INT, "104857600", _POSITIVE, _TRANSACTIONS),
    ("transaction.two.phase.commit.enable", ConfigType.BOOLEAN, "false", None, _TRANSACTIONS),
    ("transactional.id.expiration.ms", _INT, "604800000", _POSITIVE, _TRANSACTIONS),
)

LATER_KEYS: Final[Mapping[str, ConfigKey]] = {
    name: ConfigKey(name, kind, default, f"Kept for {purpose}.", rule)
    for name, kind, default, rule, purpose in _ROWS
}
