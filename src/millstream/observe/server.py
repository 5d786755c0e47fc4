"""The HTTP port of a broker; the HTTP modules are imported with the first connection.

A start is measured in tenths of a second, and many brokers are never scraped.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.logs import get_logger
from millstream.runtime.network import Listener, Network

if TYPE_CHECKING:
    from millstream.observe.http import HttpConnection
    from millstream.observe.http_places import Scrapes

log = get_logger("millstream.observe.server")

CHECK_S: Final = 0.25
"""Between two checks, while there are too many connections or scrapes wait."""


class ObserveServer:
    """The HTTP side of one broker."""

    def __init__(
        self,
        network: Network,
        metrics: BrokerMetrics,
        *,
        why_not_ready: Callable[[], str | None],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """`why_not_ready` gives None when clients are served, else the reason.

        `prepare` is called once, before the first connection: for metrics that only scrapes need.
        """
        self._network = network
        self.metrics = metrics
        self.why_not_ready = why_not_ready
        self._prepare: Callable[[], None] | None = prepare
        self.connections: dict[HttpConnection, None] = {}
        """The oldest first."""
        self._scrapes: Scrapes
        self._check: asyncio.TimerHandle | None = None
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
        if self._check is not None:
            self._check.cancel()
            self._check = None

    # -- connections -----------------------------------------------------------------------

    def admit(self, connection: "HttpConnection") -> bool:
        """Whether there is a place for it, at the cost of others if need be."""
        from millstream.observe.http_places import CONNECTIONS_MAX, OPEN_MAX, PER_ADDRESS_MAX

        if len(self.connections) >= OPEN_MAX:
            self._close_surplus(OPEN_MAX - 1, spares_young=False)
            if len(self.connections) >= OPEN_MAX:
                return False
        self.connections[connection] = None
        if len(self.connections) > min(CONNECTIONS_MAX, PER_ADDRESS_MAX):
            self._check_soon()
        return True

    def leave(self, connection: "HttpConnection") -> None:
        """It is gone."""
        self.connections.pop(connection, None)
        self.end_scrape(connection)

    def begin_scrape(self, connection: "HttpConnection") -> bool:
        """Whether metrics can be written to it now; `begin_scrape` is called on it later if not."""
        if self._scrapes.begin(connection):
            return True
        self._check_soon()
        return False

    def end_scrape(self, connection: "HttpConnection") -> None:
        """It has its metrics, or does not want them any more."""
        self._scrapes.end(connection)
        while (following := self._scrapes.take_next()) is not None:
            cast("HttpConnection", following).begin_scrape()

    def _check_soon(self) -> None:
        # Later, not now: what new connections have sent already is read first.
        if self._check is None:
            self._check = asyncio.get_running_loop().call_later(CHECK_S, self._check_places)

    def _check_places(self) -> None:
        from millstream.observe.http_places import CONNECTIONS_MAX, PER_ADDRESS_MAX

        self._check = None
        self._close_surplus(CONNECTIONS_MAX, spares_young=True)
        for one in self._scrapes.stuck(asyncio.get_running_loop().time()):
            cast("HttpConnection", one).abort()
        is_many = len(self.connections) > min(CONNECTIONS_MAX, PER_ADDRESS_MAX)
        if is_many or self._scrapes.has_waiting:
            self._check_soon()

    def _close_surplus(self, connections_max: int, *, spares_young: bool) -> None:
        from millstream.observe.http_places import surplus

        now_s = asyncio.get_running_loop().time()
        for one in surplus(
            self.connections, now_s, connections_max=connections_max, spares_young=spares_young
        ):
            connection = cast("HttpConnection", one)
            self.connections.pop(connection, None)  # counts no more, though its end takes a moment
            connection.abort()

    def _connection(self) -> "HttpConnection":
        from millstream.observe.http import HttpConnection
        from millstream.observe.http_places import Scrapes

        if self._prepare is not None:
            prepare, self._prepare = self._prepare, None
            self._scrapes = Scrapes()
            prepare()
        return HttpConnection(self)
