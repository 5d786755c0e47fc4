"""Settings of a component's connections to brokers."""

import ssl
from dataclasses import dataclass
from typing import Final

from millstream import __version__

FIRST_RESPONSE_BYTES_MAX: Final = 1024 * 1024
"""Before ApiVersions the peer may be anything; Kafka's response to it has 2 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcSettings:
    """One for all connections of a component."""

    client_id: str | None = None
    software_name: str = "millstream"
    software_version: str = __version__
    """Letters, digits, dots and hyphens: Kafka refuses others."""
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    in_flight_max: int = 64
    """Requests in flight on one connection; `send` waits beyond that."""
    response_bytes_max: int = 128 * 1024 * 1024
    """Largest response accepted: above Kafka's `fetch.max.bytes` of 50 MiB and one large batch."""
    idle_s: float = 540.0
    """Close after that long without a request; below the ten minutes of Kafka's brokers, so that
    we close first and no request is sent on a connection that is being closed."""
    tls: ssl.SSLContext | None = None
