"""Kafka's keys that have no effect here, each with the reason.

One that Kafka lets clients change is accepted and kept as in Kafka (`inert_keys.py`), so that tools
that write it keep working, and the log says that it has no effect. In a settings file each is a
warning. The documentation's tables are checked against these.
"""

from collections.abc import Mapping
from typing import Final

_TIERED: Final = "tiered storage is not supported"
_ONE_LOOP: Final = "one event loop serves all connections"
_TLS: Final = "only PLAINTEXT listeners are supported"
_LOGIN: Final = "authentication is not supported"
_QUORUM: Final = "there is no KRaft controller quorum"
_METRICS: Final = "metrics are read from metrics.port"
_CLASSES: Final = "Java classes cannot be loaded"
_QUOTAS: Final = "client quotas are not supported"
_WINDOWS: Final = "replication throttles are not measured in windows"
_PURGATORY: Final = "a finished request leaves the purgatory at once"
_SHARE: Final = "share groups are not supported"
_STREAMS: Final = "streams groups are not supported"
_TOKENS: Final = "delegation tokens are not supported"

INERT_TOPIC_REASONS: Final[Mapping[str, str]] = {
    "local.retention.bytes": _TIERED,
    "local.retention.ms": _TIERED,
    "preallocate": "segment files grow as they are written",
    "remote.log.copy.disable": _TIERED,
    "remote.log.delete.on.disable": _TIERED,
    "remote.storage.enable": _TIERED,
}

INERT_BROKER_REASONS: Final[Mapping[str, str]] = {
    "alter.config.policy.class.name": _CLASSES,
    "alter.log.dirs.replication.quota.window.num": _WINDOWS,
    "alter.log.dirs.replication.quota.window.size.seconds": _WINDOWS,
    "authorizer.class.name": _CLASSES,
    "background.threads": "blocking work has a thread pool of fixed size",
    "broker.heartbeat.interval.ms": _QUORUM,
    "broker.session.timeout.ms": _QUORUM,
    "client.quota.callback.class": _CLASSES,
    "config.providers": _CLASSES,
    "connection.failed.authentication.delay.ms": _LOGIN,
    "connections.max.reauth.ms": _LOGIN,
    "controller.listener.names": _QUORUM,
    "cordoned.log.dirs": "every log directory takes new partitions",
    "create.topic.policy.class.name": _CLASSES,
    "delete.records.purgatory.purge.interval.requests": _PURGATORY,
    "early.start.listeners": "all listeners open together, when the broker is ready",
    "fetch.purgatory.purge.interval.requests": _PURGATORY,
    "follower.fetch.last.tiered.offset.enable": _TIERED,
    "group.coordinator.background.threads": _ONE_LOOP,
    "group.coordinator.cached.buffer.max.bytes": "no buffers are cached for the records of groups",
    "group.coordinator.threads": _ONE_LOOP,
    "initial.broker.registration.timeout.ms": _QUORUM,
    "log.cleaner.io.buffer.load.factor": "the cleaner's key map has a fixed load factor",
    "log.cleaner.io.buffer.size": "the cleaner reads batch by batch",
    "log.cleaner.threads": "one log is cleaned at a time",
    "log.dir.failure.timeout.ms": _QUORUM,
    "log.flush.start.offset.checkpoint.interval.ms": "start offsets are stored together with the"
    " recovery points, every log.flush.offset.checkpoint.interval.ms",
    "log.initial.task.delay.ms": "background tasks first run after one interval",
    "log.local.retention.bytes": _TIERED,
    "log.local.retention.ms": _TIERED,
    "log.preallocate": "segment files grow as they are written",
    "max.connection.creation.rate": "the rate of new connections is not limited",
    "metadata.log.dir": "metadata is in the first directory of log.dirs",
    "metric.reporters": _METRICS,
    "num.io.threads": _ONE_LOOP,
    "num.network.threads": _ONE_LOOP,
    "num.recovery.threads.per.data.dir": "logs are recovered one after the other",
    "num.replica.alter.log.dirs.threads": "moves between directories share the thread pool",
    "num.replica.fetchers": "one connection fetches everything that another broker leads",
    "offsets.topic.compression.codec": "offsets are stored uncompressed, as by default in Kafka",
    "principal.builder.class": _CLASSES,
    "process.roles": _QUORUM,
    "producer.id.expiration.check.interval.ms": "expired producers are removed every ten minutes",
    "producer.purgatory.purge.interval.requests": _PURGATORY,
    "queued.max.requests": "each connection has its own limit on queued requests",
    "replica.socket.receive.buffer.bytes": "the kernel sizes receive buffers itself",
    "security.providers": _CLASSES,
    "server.max.startup.time.ms": "startup time is not limited",
    "socket.listen.backlog.size": "the accept queue has a fixed length",
    "socket.receive.buffer.bytes": "the kernel sizes receive buffers itself",
    "telemetry.max.bytes": "clients do not send telemetry",
    "unclean.leader.election.interval.ms": "allowed unclean elections happen at once",
    "unstable.api.versions.enable": "unstable versions are not supported",
    "unstable.feature.versions.enable": "unstable versions are not supported",
}

INERT_BROKER_PREFIXES: Final[Mapping[str, str]] = {
    "controller.performance.": _QUORUM,
    "controller.quorum.": _QUORUM,
    "controller.quota.": _QUOTAS,
    "controller.socket.": _QUORUM,
    "delegation.token.": _TOKENS,
    "group.share.": _SHARE,
    "group.streams.": _STREAMS,
    "internal.metadata.": _QUORUM,
    "kafka.metrics.": _METRICS,
    "listener.name.": _TLS,
    "metadata.log.": _QUORUM,
    "metadata.max.": _QUORUM,
    "metrics.num.": _METRICS,
    "metrics.recording.": _METRICS,
    "metrics.sample.": _METRICS,
    "quota.window.": _QUOTAS,
    "remote.": _TIERED,
    "replication.quota.": _WINDOWS,
    "sasl.": _LOGIN,
    "share.": _SHARE,
    "socket.connection.setup.timeout.max.": "every attempt to connect has the same timeout",
    "ssl.": _TLS,
}
"""Prefixes whose keys all have no effect."""


def inert_broker_reason(name: str) -> str | None:
    """Why a broker's key of Kafka's has no effect; None for any other name."""
    reason = INERT_BROKER_REASONS.get(name)
    if reason is not None:
        return reason
    return next(
        (why for prefix, why in INERT_BROKER_PREFIXES.items() if name.startswith(prefix)), None
    )
