"""Which connections a broker keeps when there are as many as its settings allow.

Neither brokers nor an administrator may be shut out by clients, however many of them there are. But
who a connection belongs to is known only from what it sends. So one beyond the limits is accepted
into a small reserve, where it may prove to be a broker's; it counts nowhere from then on. One from
this machine may have one of a few places for administrators. All others are closed at their first
request, or when they have not sent any for a while, unless there is room by then.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol

from millstream.broker.net.peer import Cause, ClientPeer
from millstream.broker.requests.between_brokers import HANDSHAKE
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.runtime.clock import Clock
from millstream.runtime.eviction import oldest_of_largest

log = get_logger("millstream.broker.net.admission")

RESERVED_MAX: Final = 64
"""Connections beyond the limits that have not said yet who they are. One more closes the oldest of
the address with the most: a broker needs milliseconds for its proof, which a fast flood from other
addresses would not leave it otherwise."""

PROOF_WAIT_S: Final = 3.0
"""How long one may stay in the reserve: many times what a broker on a busy machine needs."""

ADMINISTRATORS_MAX: Final = 2
"""Connections from this machine that are served beyond the limits: a tool has one to the address it
was given, and one to the broker that the metadata names."""

ADMINISTRATOR_HOLD_S: Final = 10.0
"""How long one of them is safe from the next: no client can keep these places by not leaving."""

_LOOPBACK: Final = ("127.", "::ffff:127.")


class Excess(Enum):
    """Which limit a connection is beyond: the label of the metric, and the line in the log."""

    ALL = "connection limit", "connection limit reached"
    ADDRESS = "address limit", "too many connections from one address"


class CountLimits(Protocol):
    """Read at every use, because they can be changed while the broker runs."""

    @property
    def connections_max(self) -> int: ...

    def per_address_max(self, address: str) -> int: ...


class Admission:
    """All connections of one broker, by what they count as."""

    def __init__(
        self,
        limits: CountLimits,
        clock: Clock,
        client_log: ClientLog,
        on_refused: Callable[[str], None],
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._client_log = client_log
        self._on_refused = on_refused
        self._counted: set[ClientPeer] = set()
        self._per_address: dict[str, int] = {}
        self._reserved: dict[str, dict[ClientPeer, float]] = {}
        """Of each address, with the time since when, the oldest first."""
        self._reserved_count = 0
        self._administrators: dict[ClientPeer, float] = {}

    # -- connections come and go -----------------------------------------------------------

    def opened(self, peer: ClientPeer) -> None:
        """Count it, or put it into the reserve."""
        if self._excess(peer) is None:
            self._count(peer)
            return
        peer.is_admitted = False
        peer.core.allows_fast_path = False  # no request may get around `admit`
        self._reserved.setdefault(peer.client_host, {})[peer] = self._clock.monotonic_s()
        self._reserved_count += 1
        if self._reserved_count > RESERVED_MAX:
            self._refuse(oldest_of_largest(self._reserved.values()))

    def closed(self, peer: ClientPeer) -> None:
        self._forget(peer)

    def proven(self, peer: ClientPeer) -> None:
        """It is a broker's, and counts nowhere."""
        self._forget(peer)
        self._admit(peer)

    def _forget(self, peer: ClientPeer) -> None:
        """Whatever it counted as."""
        self._leave_reserve(peer)
        self._administrators.pop(peer, None)
        if peer not in self._counted:
            return
        self._counted.discard(peer)
        left = self._per_address[peer.client_host] - 1
        if left:
            self._per_address[peer.client_host] = left
        else:
            del self._per_address[peer.client_host]

    # -- the reserve -----------------------------------------------------------------------

    def admit(self, peer: ClientPeer, api_key: int) -> bool:
        """Whether a request of a connection in the reserve is served; otherwise it is closed."""
        if api_key in HANDSHAKE:
            return True
        if self._promote(peer) or self._serve_administrator(peer):
            return True
        self._refuse(peer)
        return False

    def sweep(self) -> None:
        """Let those in for whom there is room by now; close those that waited too long."""
        now_s = self._clock.monotonic_s()
        waiting = [one for group in self._reserved.values() for one in group.items()]
        for peer, since_s in waiting:
            if not self._promote(peer) and now_s - since_s > PROOF_WAIT_S:
                self._refuse(peer)

    def _promote(self, peer: ClientPeer) -> bool:
        if self._excess(peer) is not None:
            return False
        self._leave_reserve(peer)
        self._count(peer)
        self._admit(peer)
        return True

    def _leave_reserve(self, peer: ClientPeer) -> None:
        group = self._reserved.get(peer.client_host)
        if group is None or peer not in group:
            return
        del group[peer]
        self._reserved_count -= 1
        if not group:
            del self._reserved[peer.client_host]

    def _serve_administrator(self, peer: ClientPeer) -> bool:
        if not is_local(peer.client_host, peer.local_host):
            return False
        now_s, places = self._clock.monotonic_s(), self._administrators
        if len(places) >= ADMINISTRATORS_MAX:
            oldest, since_s = next(iter(places.items()))
            if now_s - since_s < ADMINISTRATOR_HOLD_S:
                return False
            oldest.abort("another administrator's connection replaces it", Cause.LIMIT)
        self._leave_reserve(peer)
        places[peer] = now_s
        self._admit(peer)
        return True

    def _refuse(self, peer: ClientPeer) -> None:
        excess = self._excess(peer) or Excess.ALL
        label, message = excess.value
        self._on_refused(label)
        open_count = len(self._counted) + self._reserved_count
        self._client_log.warning(log, message, client=peer.client_host, open=open_count)
        peer.abort(message, Cause.LIMIT)

    def _admit(self, peer: ClientPeer) -> None:
        peer.is_admitted = True
        peer.core.allows_fast_path = True

    # -- counts ----------------------------------------------------------------------------

    def _count(self, peer: ClientPeer) -> None:
        self._counted.add(peer)
        self._per_address[peer.client_host] = self._per_address.get(peer.client_host, 0) + 1

    def _excess(self, peer: ClientPeer) -> Excess | None:
        """The limit that one more connection would be beyond."""
        host = peer.client_host
        if self._per_address.get(host, 0) >= self._limits.per_address_max(host):
            return Excess.ADDRESS
        return Excess.ALL if len(self._counted) >= self._limits.connections_max else None


def is_local(host: str, local_host: str) -> bool:
    """Whether a connection to `local_host` comes from this machine itself."""
    if host.startswith(_LOOPBACK) or host == "::1":
        return True
    # A broker may listen on an address of its network only: a tool beside it comes from there, too.
    return bool(host) and host == local_host
