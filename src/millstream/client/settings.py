"""Settings of a client: Kafka's names in, typed values out; hashable, as the key of a cache.

An unknown setting is kept and warned of once, not refused: one set of `kafka.*` options is passed
to clients that support different parts of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from millstream.client.errors import ConfigInvalid
from millstream.client.setting_keys import ACKS, CLIENT_KEYS, field_name
from millstream.model.config.definition import Value, split_list
from millstream.model.config.errors import InvalidValue
from millstream.model.config.nearest import hint
from millstream.observe.logs import get_logger
from millstream.rpc.addresses import host_port
from millstream.rpc.backoff import Backoff
from millstream.rpc.settings import RpcSettings

BOOTSTRAP: Final = "bootstrap.servers"
IDEMPOTENCE: Final = "enable.idempotence"
IN_FLIGHT: Final = "max.in.flight.requests.per.connection"
IDEMPOTENT_IN_FLIGHT_MAX: Final = 5
"""A broker remembers the last five batches of a producer."""

_ADDRESS: Final = re.compile(r"(?:[0-9A-Za-z._%-]+://)?(?:\[([^\[\]]+)\]|([^\[\]:/]+)):(\d{1,5})")
_NEVER_S: Final = 10 * 365 * 24 * 3600.0

_log = get_logger(__name__)
_warned_keys: set[str] = set()
"""Unknown keys that this process has warned of."""


class HostPort(NamedTuple):
    """The address of a broker."""

    host: str
    port: int

    def __str__(self) -> str:
        return host_port(self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Every field is a key of `setting_keys.py`, with underscores for dots."""

    bootstrap_servers: tuple[HostPort, ...]
    client_id: str
    client_rack: str
    security_protocol: str
    default_api_timeout_ms: int
    request_timeout_ms: int
    socket_connection_setup_timeout_ms: int
    connections_max_idle_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    metadata_max_age_ms: int
    metadata_max_idle_ms: int
    isolation_level: str
    fetch_min_bytes: int
    fetch_max_bytes: int
    fetch_max_wait_ms: int
    max_partition_fetch_bytes: int
    prefetch_max_bytes: int
    """Ours, not Kafka's."""
    check_crcs: bool
    acks: int
    """-1 is all."""
    enable_idempotence: bool
    max_in_flight_requests_per_connection: int
    compression_type: str
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    delivery_timeout_ms: int
    others: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Unknown keys, sorted; never shown, as passwords may be among them."""

    @classmethod
    def from_configs(cls, configs: Mapping[str, object]) -> Self:
        """Raises ConfigInvalid for invalid values; numbers and booleans need not be strings."""
        texts = {name: _text(value) for name, value in configs.items()}
        values: dict[str, Any] = {}
        for name, key in CLIENT_KEYS.items():
            text = texts.get(name, key.default)
            if text is None:
                raise ConfigInvalid(f"{name} is missing: set it to host:port of a broker")
            values[name] = _parsed(name, text)
        others = {name: text for name, text in texts.items() if name not in CLIENT_KEYS}
        _warn_of_unknown(others)
        values[BOOTSTRAP] = _addresses(values[BOOTSTRAP])
        values["acks"] = ACKS[values["acks"]]
        _check_security(values["security.protocol"])
        _resolve_idempotence(values, texts)
        _resolve_delivery_timeout(values, texts)
        fields = {field_name(name): value for name, value in values.items()}
        return cls(**fields, others=tuple(sorted(others.items())))

    @property
    def is_read_committed(self) -> bool:
        return self.isolation_level == "read_committed"

    @property
    def api_timeout_s(self) -> float:
        """Of a call without a timeout of its own."""
        return self.default_api_timeout_ms / 1000

    @property
    def request_timeout_s(self) -> float:
        return self.request_timeout_ms / 1000

    @property
    def retry_backoff(self) -> Backoff:
        return _backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)

    @property
    def reconnect_backoff(self) -> Backoff:
        return _backoff(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms)

    @property
    def rpc(self) -> RpcSettings:
        """For every connection."""
        idle_ms = self.connections_max_idle_ms
        return RpcSettings(
            client_id=self.client_id,
            connect_timeout_s=self.socket_connection_setup_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_s,
            idle_s=idle_ms / 1000 if idle_ms >= 0 else _NEVER_S,
            # The first batch is returned whole although it is larger than the requested maximum.
            response_bytes_max=max(RpcSettings().response_bytes_max, 2 * self.fetch_max_bytes),
        )


def _backoff(initial_ms: int, max_ms: int) -> Backoff:
    # As Kafka: a maximum below the initial backoff limits that too.
    return Backoff(initial_s=min(initial_ms, max_ms) / 1000, max_s=max_ms / 1000)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _parsed(name: str, text: str) -> Value:
    try:
        return CLIENT_KEYS[name].parse(text)
    except InvalidValue as error:
        raise ConfigInvalid(str(error)) from None


def _warn_of_unknown(others: Mapping[str, str]) -> None:
    for name in others.keys() - _warned_keys:
        _warned_keys.add(name)
        near = hint(name, CLIENT_KEYS)
        _log.warning(f"unknown client setting {name!r} is ignored{near}", key=name)


def parse_addresses(text: str) -> tuple[HostPort, ...]:
    """Comma-separated `host:port`; raises ConfigInvalid."""
    return _addresses(split_list(text))


def _addresses(texts: list[str]) -> tuple[HostPort, ...]:
    found = []
    for text in texts:
        match = _ADDRESS.fullmatch(text)
        if match is None or not 0 < int(match[3]) < 65536:
            raise ConfigInvalid(
                f"{BOOTSTRAP}: invalid address {text!r}; use host:port, or [address]:port for IPv6"
            )
        found.append(HostPort(match[1] or match[2], int(match[3])))
    if not found:
        raise ConfigInvalid(f"{BOOTSTRAP} is empty: set it to host:port of a broker")
    return tuple(dict.fromkeys(found))


def _check_security(protocol: str) -> None:
    if protocol.upper() != "PLAINTEXT":
        raise ConfigInvalid(
            f"security.protocol={protocol} is not supported yet, only PLAINTEXT; use a PLAINTEXT"
            " listener of the brokers"
        )


def _resolve_idempotence(values: dict[str, Any], texts: Mapping[str, str]) -> None:
    """As Kafka: an explicit setting must be consistent, a default is switched off instead."""
    why = ""
    if values["acks"] != -1:
        why = "acks=all"
    elif values[IN_FLIGHT] > IDEMPOTENT_IN_FLIGHT_MAX:
        why = f"{IN_FLIGHT} of at most {IDEMPOTENT_IN_FLIGHT_MAX}"
    if values[IDEMPOTENCE] and why:
        if IDEMPOTENCE in texts:
            raise ConfigInvalid(f"{IDEMPOTENCE}=true requires {why}")
        values[IDEMPOTENCE] = False


def _resolve_delivery_timeout(values: dict[str, Any], texts: Mapping[str, str]) -> None:
    needed_ms = min(values["linger.ms"] + values["request.timeout.ms"], 2**31 - 1)
    if values["delivery.timeout.ms"] < needed_ms:
        if "delivery.timeout.ms" in texts:
            raise ConfigInvalid(
                f"delivery.timeout.ms must be at least linger.ms + request.timeout.ms ({needed_ms})"
            )
        values["delivery.timeout.ms"] = needed_ms
