"""The limits of connections as the settings have them now."""

from typing import Final

from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.model.limits import IN_FLIGHT_REQUESTS_MAX, MIB
from millstream.observe.logs import get_logger

log = get_logger("millstream.broker.net.limits")

_NEVER_S: Final = 10 * 365 * 86_400.0
_NO_LIMIT: Final = 2**62


class ConfiguredLimits:
    """Read at every use: most of them can be changed while the broker runs."""

    def __init__(self, configs: BrokerConfigs, connections_max: int) -> None:
        """`connections_max` is what the process has descriptors for."""
        self._configs = configs
        self._connections_max = connections_max

    @property
    def frame_bytes_max(self) -> int:
        return self._configs.get_int("socket.request.max.bytes")

    @property
    def in_flight_max(self) -> int:
        return IN_FLIGHT_REQUESTS_MAX

    @property
    def request_memory_bytes(self) -> int:
        """At least so much that there is room for one request of the largest size. Used at the
        start only.
        """
        size = self._configs.get_int("queued.max.request.bytes")
        if size <= 0:
            return _NO_LIMIT
        least = self.frame_bytes_max * 4 // 3 + MIB
        if size < least:
            log.warning(
                "queued.max.request.bytes is raised: the largest request must fit",
                configured=size,
                largest_request=self.frame_bytes_max,
                used=least,
            )
        return max(size, least)

    @property
    def send_buffer_bytes(self) -> int | None:
        """None: the system decides."""
        size = self._configs.get_int("socket.send.buffer.bytes")
        return size if size > 0 else None

    @property
    def connections_max(self) -> int:
        return min(self._configs.get_int("max.connections"), self._connections_max)

    @property
    def idle_s(self) -> float:
        idle_ms = self._configs.get_int("connections.max.idle.ms")
        return idle_ms / 1000 if idle_ms >= 0 else _NEVER_S

    def per_address_max(self, address: str) -> int:
        for override in self._configs.get_list("max.connections.per.ip.overrides"):
            host, _, count = override.rpartition(":")
            if host.strip() == address:
                return int(count)
        return self._configs.get_int("max.connections.per.ip")
