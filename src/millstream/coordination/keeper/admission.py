"""How much of the server one address may use: connections, requests under way, answers not read.

Brokers and attackers may come from the same address, as on one machine. So connections that have
proved to have the secret and those that have not are counted apart, and where there are too many of
the latter the oldest is closed, not the newest: a broker proves itself within milliseconds. Silent
ones and those that have asked for a session are two groups, and the larger one makes room: a flood
has to ask for sessions to be in the way of a broker that has got its own.
"""

from dataclasses import dataclass, field
from typing import Protocol

from millstream.coordination.keeper.limits import (
    AUTHENTICATED_MAX,
    AUTHENTICATED_PER_ADDRESS_MAX,
    OUTPUT_BYTES_PER_ADDRESS_MAX,
    PENDING_BYTES_PER_ADDRESS_MAX,
    UNAUTHENTICATED_MAX,
    UNAUTHENTICATED_PER_ADDRESS_MAX,
)
from millstream.coordination.keeper.watches import ConnectionId
from millstream.runtime.eviction import oldest_of_largest


class Held(Protocol):
    """A connection from which nothing is read for now."""

    def release(self) -> None: ...


@dataclass(slots=True)
class AddressUse:
    """What one address uses; its connections share this value."""

    address: str
    silent: dict[ConnectionId, None] = field(default_factory=dict)
    """Have sent no request yet; oldest first, as in the next ones."""
    unproven: dict[ConnectionId, None] = field(default_factory=dict)
    """Have sent one, but no proof of the secret."""
    members: dict[ConnectionId, None] = field(default_factory=dict)
    pending_bytes: int = 0
    """Of requests that wait for the disk."""
    unread_bytes: int = 0
    """Of answers that wait for clients whose buffers are full."""
    held: list[Held] = field(default_factory=list)
    """Connections that wait until less is pending."""

    @property
    def newcomers(self) -> int:
        """Without a proof of the secret."""
        return len(self.silent) + len(self.unproven)

    @property
    def is_full(self) -> bool:
        return self.pending_bytes >= PENDING_BYTES_PER_ADDRESS_MAX

    @property
    def is_unread(self) -> bool:
        return self.unread_bytes > OUTPUT_BYTES_PER_ADDRESS_MAX

    def answered(self, size_bytes: int) -> None:
        """A request is not pending any more; who was held may be read from again."""
        self.pending_bytes -= size_bytes
        if self.held and self.pending_bytes <= PENDING_BYTES_PER_ADDRESS_MAX // 2:
            held, self.held = self.held, []
            for one in held:
                one.release()


class Admission:
    """Counts connections, and says which one has to go."""

    def __init__(self) -> None:
        self._uses: dict[str, AddressUse] = {}
        self._newcomers = 0
        self._members = 0

    def opened(self, connection: ConnectionId, address: str) -> AddressUse:
        use = self._uses.get(address)
        if use is None:
            use = self._uses[address] = AddressUse(address)
        use.silent[connection] = None
        self._newcomers += 1
        return use

    def greeted(self, connection: ConnectionId, use: AddressUse) -> None:
        """It has sent its first request."""
        if connection in use.silent:
            del use.silent[connection]
            use.unproven[connection] = None

    def surplus(self, use: AddressUse) -> ConnectionId | None:
        """The connection to close, after one from this address was opened."""
        if use.newcomers <= UNAUTHENTICATED_PER_ADDRESS_MAX:
            if self._newcomers <= UNAUTHENTICATED_MAX:
                return None
            use = max(self._uses.values(), key=lambda one: one.newcomers)
        return oldest_of_largest((use.silent, use.unproven))

    def is_admitted(self, connection: ConnectionId, use: AddressUse) -> bool:
        """Whether a connection that has proved itself may stay."""
        if self._forget_newcomer(connection, use):
            use.members[connection] = None
            self._members += 1
        is_full = self._members > AUTHENTICATED_MAX
        return not is_full and len(use.members) <= AUTHENTICATED_PER_ADDRESS_MAX

    def closed(self, connection: ConnectionId, use: AddressUse) -> None:
        if not self._forget_newcomer(connection, use) and connection in use.members:
            del use.members[connection]
            self._members -= 1
        if not use.newcomers and not use.members and self._uses.get(use.address) is use:
            del self._uses[use.address]

    def _forget_newcomer(self, connection: ConnectionId, use: AddressUse) -> bool:
        """Whether it was one."""
        for group in (use.silent, use.unproven):
            if connection in group:
                del group[connection]
                self._newcomers -= 1
                return True
        return False

    def newcomers(self) -> list[ConnectionId]:
        """All connections without a proof."""
        return [one for use in self._uses.values() for one in (*use.silent, *use.unproven)]
