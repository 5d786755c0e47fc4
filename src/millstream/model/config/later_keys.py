"""Kafka's broker keys for transactions.

A settings file may have them already and a wrong value is refused, but nothing reads them yet, so
they are not described to clients. A key moves to `broker_keys.py` with the code that obeys it.
"""

from collections.abc import Mapping
from typing import Final

from millstream.model.config.definition import ConfigKey, ConfigType, Mode, Rule, at_least

_TRANSACTIONS: Final = "transactions"

_INT, _LONG, _SHORT = ConfigType.INT, ConfigType.LONG, ConfigType.SHORT
_POSITIVE: Final = at_least(1)
_NOT_NEGATIVE: Final = at_least(0)

_ROWS: Final[tuple[tuple[str, ConfigType, str | None, Rule | None, str], ...]] = (
    ("add.partitions.to.txn.retry.backoff.max.ms", _INT, "100", _NOT_NEGATIVE, _TRANSACTIONS),
    ("add.partitions.to.txn.retry.backoff.ms", _INT, "20", _POSITIVE, _TRANSACTIONS),
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


def _mode(name: str) -> Mode:
    is_dynamic = name == "transaction.partition.verification.enable"
    return Mode.CLUSTER_WIDE if is_dynamic else Mode.READ_ONLY


LATER_KEYS: Final[Mapping[str, ConfigKey]] = {
    name: ConfigKey(name, kind, default, f"Kept for {purpose}.", rule, mode=_mode(name))
    for name, kind, default, rule, purpose in _ROWS
}
