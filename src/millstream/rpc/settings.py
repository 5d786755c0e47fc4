"""How a component talks to brokers."""

import ssl
from dataclasses import dataclass
from typing import Final

from millstream import __version__

FIRST_RESPONSE_BYTES_MAX: Final = 1024 * 1024
"""Before the versions are agreed the peer is anybody; Kafka's list of versions has 2 KB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcSettings:
    """How to talk; one for all connections of a component."""

    client_id: str | None = None
    software_name: str = "millstream"
    software_version: str = __version__
    """Letters, digits, dots and dashes: Kafka refuses others."""
    connect_timeout_s: float = 10.0
    request_timeout_s: float = 30.0
    in_flight_max: int = 64
    """Requests of one connection that wait for answers; `send` waits for its turn beyond that."""
    response_bytes_max: int = 128 * 1024 * 1024
    """Largest answer taken: above Kafka's `fetch.max.bytes` of 50 MiB and one large batch."""
    idle_s: float = 540.0
    """Close after that long without a request; below the ten minutes of Kafka's brokers, so that
    we close first and no request meets a connection that is being closed."""
    tls: ssl.SSLContext | None = None
