"""How much of the server one address may use: connections, requests under way, answers not read.

Brokers and attackers may come from the same address, as on one machine. So connections that have
proved to have the secret and those that have not are counted apart, and where there are too many of
the latter the oldest is closed, not the newest: a broker proves itself within milliseconds.
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


class Held(Protocol):
    """A connection from which nothing is read for now."""

    def release(self) -> None: ...


@dataclass(slots=True)
class AddressUse:
    """What one address uses; its connections share this value."""

    address: str
    newcomers: dict[ConnectionId, None] = field(default_factory=dict)
    """Without a proof of the secret, oldest first."""
    members: dict[ConnectionId, None] = field(default_factory=dict)
    pending_bytes: int = 0
    """Of requests that wait for the disk."""
    unread_bytes: int = 0
    """Of answers that wait for clients whose buffers are full."""
    held: list[Held] = field(default_factory=list)
    """Connections that wait until less is pending."""

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
        use.newcomers[connection] = None
        self._newcomers += 1
        return use

    def surplus(self, use: AddressUse) -> ConnectionId | None:
        """The connection to close, after one from this address was opened."""
        if len(use.newcomers) > UNAUTHENTICATED_PER_ADDRESS_MAX:
            return next(iter(use.newcomers))
        if self._newcomers > UNAUTHENTICATED_MAX:
            largest = max(self._uses.values(), key=lambda one: len(one.newcomers))
            return next(iter(largest.newcomers))
        return None

    def is_admitted(self, connection: ConnectionId, use: AddressUse) -> bool:
        """Whether a connection that has proved itself may stay."""
        if connection in use.newcomers:
            del use.newcomers[connection]
            self._newcomers -= 1
            use.members[connection] = None
            self._members += 1
        is_full = self._members > AUTHENTICATED_MAX
        return not is_full and len(use.members) <= AUTHENTICATED_PER_ADDRESS_MAX

    def closed(self, connection: ConnectionId, use: AddressUse) -> None:
        if connection in use.newcomers:
            del use.newcomers[connection]
            self._newcomers -= 1
        elif connection in use.members:
            del use.members[connection]
            self._members -= 1
        if not use.newcomers and not use.members and self._uses.get(use.address) is use:
            del self._uses[use.address]

    def newcomers(self) -> list[ConnectionId]:
        """All connections without a proof."""
        return [one for use in self._uses.values() for one in use.newcomers]
