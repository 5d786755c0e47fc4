"""Kafka's keys that clients can change and that have no effect here: types, defaults and rules.

They are accepted and refused as in Kafka, kept, and shown where they are set: tools that manage a
cluster's settings write them and must read back what they wrote. So are unknown names, which Kafka
keeps for plug-ins. `inert_reasons.py` has the reasons. Loaded only where a key is set.
"""

import re
from collections.abc import Mapping
from typing import Final

from millstream.model.config.broker_keys import BROKER_KEYS, LISTENER_PREFIX
from millstream.model.config.definition import (
    ConfigKey,
    ConfigType,
    Mode,
    Rule,
    Value,
    at_least,
    each_of,
    one_of,
)
from millstream.model.config.errors import InvalidConfigRequest
from millstream.model.config.inert_reasons import INERT_TOPIC_REASONS, inert_broker_reason
from millstream.model.config.nearest import hint
from millstream.model.config.topic_keys import LONG_MAX

_BOOLEAN, _INT, _LONG = ConfigType.BOOLEAN, ConfigType.INT, ConfigType.LONG
_STRING, _LIST, _CLASS = ConfigType.STRING, ConfigType.LIST, ConfigType.CLASS
_DOUBLE, _PASSWORD = ConfigType.DOUBLE, ConfigType.PASSWORD

_NO_TIERS: Final = Rule("false: tiered storage is not supported", lambda value: value is False)
_LOCAL: Final = at_least(-2)
_LOCAL_MS: Final = Rule("-2, or at least 0", lambda value: value == -2 or value >= 0)
# Placing partitions where the operator has forbidden it is worse than a refusal.
_NOTHING: Final = Rule("empty: every log directory takes new partitions", lambda values: not values)
_REPORTER: Final = "org.apache.kafka.common.metrics.JmxReporter"
_PRINCIPALS: Final = "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"

Row = tuple[str, ConfigType, str | None, Rule | None]

_TOPIC_ROWS: Final[tuple[tuple[str, ConfigType, str, Rule | None, tuple[str, ...]], ...]] = (
    ("local.retention.bytes", _LONG, "-2", _LOCAL, ("log.local.retention.bytes",)),
    ("local.retention.ms", _LONG, "-2", _LOCAL, ("log.local.retention.ms",)),
    ("preallocate", _BOOLEAN, "false", None, ("log.preallocate",)),
    ("remote.log.copy.disable", _BOOLEAN, "false", None, ()),
    ("remote.log.delete.on.disable", _BOOLEAN, "false", None, ()),
    ("remote.storage.enable", _BOOLEAN, "false", _NO_TIERS, ()),
)

_POOLS: Final[tuple[Row, ...]] = (
    ("background.threads", _INT, "10", at_least(1)),
    ("log.cleaner.threads", _INT, "1", at_least(1)),
    ("num.io.threads", _INT, "8", at_least(1)),
    ("num.network.threads", _INT, "3", at_least(1)),
    ("num.recovery.threads.per.data.dir", _INT, "2", at_least(1)),
    ("num.replica.fetchers", _INT, "1", at_least(1)),
    ("remote.log.manager.copier.thread.pool.size", _INT, "10", at_least(1)),
    ("remote.log.manager.expiration.thread.pool.size", _INT, "10", at_least(1)),
    ("remote.log.manager.follower.thread.pool.size", _INT, "2", at_least(1)),
    ("remote.log.reader.threads", _INT, "10", at_least(1)),
)
"""Thread counts, which Kafka lets change by a factor of two at most."""

_FOR_ALL: Final[tuple[Row, ...]] = (
    *_POOLS,
    ("config.providers", _LIST, "", None),
    ("follower.fetch.last.tiered.offset.enable", _BOOLEAN, "false", None),
    ("group.coordinator.cached.buffer.max.bytes", _INT, "1048588", at_least(524_288)),
    ("group.share.assignment.interval.ms", _INT, "1000", at_least(0)),
    ("group.streams.assignment.interval.ms", _INT, "1000", at_least(0)),
    ("log.cleaner.io.buffer.load.factor", _DOUBLE, "0.9", None),
    ("log.cleaner.io.buffer.size", _INT, "524288", at_least(0)),
    ("log.local.retention.bytes", _LONG, "-2", _LOCAL),
    ("log.local.retention.ms", _LONG, "-2", _LOCAL_MS),
    ("log.preallocate", _BOOLEAN, "false", None),
    ("max.connection.creation.rate", _INT, "2147483647", at_least(1)),
    ("metric.reporters", _LIST, _REPORTER, each_of(_REPORTER)),
    ("remote.fetch.max.wait.ms", _INT, "500", at_least(1)),
    ("remote.list.offsets.request.timeout.ms", _LONG, "30000", at_least(1)),
    ("remote.log.index.file.cache.total.size.bytes", _LONG, "1073741824", at_least(1)),
    ("remote.log.manager.copy.max.bytes.per.second", _LONG, LONG_MAX, at_least(1)),
    ("remote.log.manager.fetch.max.bytes.per.second", _LONG, LONG_MAX, at_least(1)),
    ("share.coordinator.cached.buffer.max.bytes", _INT, "1048588", at_least(524_288)),
)

_PER_BROKER: Final[tuple[Row, ...]] = (
    ("cordoned.log.dirs", _LIST, "", _NOTHING),
    ("principal.builder.class", _CLASS, _PRINCIPALS, one_of(_PRINCIPALS)),
    ("sasl.enabled.mechanisms", _LIST, "GSSAPI", None),
    ("sasl.jaas.config", _PASSWORD, None, None),
    ("sasl.kerberos.kinit.cmd", _STRING, "/usr/bin/kinit", None),
    ("sasl.kerberos.min.time.before.relogin", _LONG, "60000", None),
    ("sasl.kerberos.principal.to.local.rules", _LIST, "DEFAULT", None),
    ("sasl.kerberos.service.name", _STRING, None, None),
    ("sasl.kerberos.ticket.renew.jitter", _DOUBLE, "0.05", None),
    ("sasl.kerberos.ticket.renew.window.factor", _DOUBLE, "0.8", None),
    ("sasl.login.refresh.buffer.seconds", ConfigType.SHORT, "300", None),
    ("sasl.login.refresh.min.period.seconds", ConfigType.SHORT, "60", None),
    ("sasl.login.refresh.window.factor", _DOUBLE, "0.8", None),
    ("sasl.login.refresh.window.jitter", _DOUBLE, "0.05", None),
    ("sasl.mechanism.inter.broker.protocol", _STRING, "GSSAPI", None),
    ("ssl.cipher.suites", _LIST, "", None),
    ("ssl.client.auth", _STRING, "none", one_of("required", "requested", "none")),
    ("ssl.enabled.protocols", _LIST, "TLSv1.2,TLSv1.3", None),
    ("ssl.endpoint.identification.algorithm", _STRING, "https", None),
    ("ssl.keymanager.algorithm", _STRING, "SunX509", None),
    ("ssl.protocol", _STRING, "TLSv1.3", None),
    ("ssl.provider", _STRING, None, None),
    ("ssl.secure.random.implementation", _STRING, None, None),
    ("ssl.trustmanager.algorithm", _STRING, "PKIX", None),
)

_PER_LISTENER: Final[tuple[Row, ...]] = (
    ("ssl.key.password", _PASSWORD, None, None),
    ("ssl.keystore.certificate.chain", _PASSWORD, None, None),
    ("ssl.keystore.key", _PASSWORD, None, None),
    ("ssl.keystore.location", _STRING, None, None),
    ("ssl.keystore.password", _PASSWORD, None, None),
    ("ssl.keystore.type", _STRING, "JKS", None),
    ("ssl.truststore.certificates", _PASSWORD, None, None),
    ("ssl.truststore.location", _STRING, None, None),
    ("ssl.truststore.password", _PASSWORD, None, None),
    ("ssl.truststore.type", _STRING, "JKS", None),
)
"""These can be changed with a listener's prefix only."""

_LISTENER: Final = re.compile(r"listener\.name\.[^.]*\.(.*)")
_OF_ALL_LISTENERS: Final = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)
"""With a listener's prefix they can be set for all brokers."""
_OF_MECHANISMS: Final = ("sasl.jaas.config",)
"""These have a SASL mechanism between the listener's prefix and their name."""


def _topic_keys() -> dict[str, ConfigKey]:
    return {
        name: ConfigKey(name, kind, default, _text(INERT_TOPIC_REASONS[name]), rule, synonyms)
        for name, kind, default, rule, synonyms in _TOPIC_ROWS
    }


def _broker_keys() -> dict[str, ConfigKey]:
    modes = (
        (_FOR_ALL, Mode.CLUSTER_WIDE),
        (_PER_BROKER, Mode.PER_BROKER),
        (_PER_LISTENER, Mode.READ_ONLY),
    )
    return {
        name: ConfigKey(name, kind, default, _text(inert_broker_reason(name)), rule, mode=mode)
        for rows, mode in modes
        for name, kind, default, rule in rows
    }


def _text(reason: str | None) -> str:
    return f"Has no effect here: {reason}."


INERT_TOPIC_KEYS: Final[Mapping[str, ConfigKey]] = _topic_keys()
INERT_BROKER_KEYS: Final[Mapping[str, ConfigKey]] = _broker_keys()
_POOL_NAMES: Final = frozenset(name for name, *_ in _POOLS)


def inert_broker_key(name: str) -> ConfigKey:
    """The key of any name that is not ours: Kafka's, or an unknown one as Kafka takes it."""
    key = INERT_BROKER_KEYS.get(name)
    if key is not None:
        return key
    base = listener_base(name)
    if base is not None:
        return _listener_key(name, base)
    reason = inert_broker_reason(name)
    if reason is not None and not name.startswith(LISTENER_PREFIX):
        return ConfigKey(name, _STRING, None, _text(reason))  # Kafka reads it at its start only
    return ConfigKey(name, ConfigType.UNKNOWN, None, "", mode=Mode.CLUSTER_WIDE)


def listener_base(name: str) -> str | None:
    """`max.connections` of `listener.name.outside.max.connections`; None for any other name."""
    found = _LISTENER.fullmatch(name)
    if found is None:
        return None
    base = found[1]
    return next((one for one in _OF_MECHANISMS if base.endswith(one)), base)


def _listener_key(name: str, base: str) -> ConfigKey:
    key = BROKER_KEYS.get(base) or INERT_BROKER_KEYS.get(base)
    if key is None:
        key = ConfigKey(base, ConfigType.UNKNOWN, None, "")
    mode = Mode.CLUSTER_WIDE if base in _OF_ALL_LISTENERS else Mode.PER_BROKER
    documentation = _text(inert_broker_reason(name))
    return key._replace(name=name, default=None, documentation=documentation, mode=mode)


def why_inert(name: str) -> str:
    """Why a broker's key that was accepted has no effect."""
    reason = inert_broker_reason(name)
    return reason or f"the setting is unknown{hint(name, (*BROKER_KEYS, *INERT_BROKER_KEYS))}"


def check_pool(name: str, value: Value, *, current: str | None) -> None:
    """Raise InvalidConfigRequest for a thread count that is far from the current one."""
    base = listener_base(name) or name
    if base not in _POOL_NAMES or not isinstance(value, int):
        return
    number = int(current or INERT_BROKER_KEYS[base].default or "1")
    if value < number // 2 or value > number * 2:
        raise InvalidConfigRequest(
            f"{name}={value}: a number of threads can be changed to no less than half and no more"
            f" than double the current value {number}"
        )
