"""The HTTP port of a broker; the HTTP modules are imported with the first connection.

A start is measured in tenths of a second, and many brokers are never scraped.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.logs import get_logger
from millstream.runtime.network import Listener, Network

if TYPE_CHECKING:
    from millstream.observe.http import HttpConnection

log = get_logger("millstream.observe.server")

CONNECTIONS_MAX: Final = 32
"""A few scrapers and probes; further connections get status 503."""


class ObserveServer:
    """The HTTP side of one broker."""

    def __init__(
        self,
        network: Network,
        metrics: BrokerMetrics,
        *,
        why_not_ready: Callable[[], str | None],
        prepare: Callable[[], None] = lambda: None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`why_not_ready` gives None when clients are served, else the reason.

        `prepare` is called once, before the first connection: for metrics that only scrapes need.
        """
        self._network = network
        self.metrics = metrics
        self.why_not_ready = why_not_ready
        self._prepare: Callable[[], None] | None = prepare
        self.connections_max = connections_max
        self.connections: set[HttpConnection] = set()
        self._listener: Listener | None = None

    async def start(self, *, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses for 0."""
        self._listener = await self._network.listen(self._connection, host=host, port=port)
        log.info("serving metrics", host=host, port=self._listener.port)
        return self._listener.port

    async def start_on_any_port(self, *, host: str, port: int) -> int | None:
        """Listen on this port if it is free, else on another; None if that fails as well.

        For a default port: a broker starts without it.
        """
        for wanted in (port, 0):
            try:
                return await self.start(host=host, port=wanted)
            except OSError as error:
                reason = error.strerror or str(error)
        log.warning("cannot serve metrics", host=host, reason=reason)
        return None

    async def close(self) -> None:
        """Stop listening and drop every connection: scrapers reconnect."""
        if self._listener is not None:
            self._listener.close()
            for connection in list(self.connections):
                connection.abort()
            await self._listener.wait_closed()
            self._listener = None

    def _connection(self) -> "HttpConnection":
        from millstream.observe.http import HttpConnection

        if self._prepare is not None:
            prepare, self._prepare = self._prepare, None
            prepare()
        return HttpConnection(self)
