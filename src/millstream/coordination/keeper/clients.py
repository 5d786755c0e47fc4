"""The clients of the server: where each connects from, who it is, what it was refused."""

import hmac
from dataclasses import dataclass

from millstream.coordination.credentials import SCHEME, digest_identity
from millstream.coordination.keeper.access import NO_IDENTITY, Identities, Identity
from millstream.coordination.keeper.jute import JuteReader
from millstream.coordination.keeper.limits import IDENTITIES_PER_CONNECTION_MAX
from millstream.coordination.keeper.watches import ConnectionId


@dataclass(slots=True)
class Client:
    """One connection."""

    connection: ConnectionId
    address: str
    """Without the port: what limits are counted by."""
    identities: Identities = NO_IDENTITY
    """None before it has proved to have the cluster's secret."""
    refused: int = 0
    """Requests without the secret."""

    @property
    def is_authenticated(self) -> bool:
        return bool(self.identities)

    def is_accepted(self, identity: Identity, cluster: Identity) -> bool:
        """Whether the client has this identity from now on: the first must be the cluster's."""
        if not self.is_authenticated and not _is_same(identity, cluster):
            return False
        if identity not in self.identities:
            if len(self.identities) >= IDENTITIES_PER_CONNECTION_MAX:
                return False
            self.identities = (*self.identities, identity)
        return True


class Clients:
    """All connections, by their number."""

    def __init__(self) -> None:
        self._clients: dict[ConnectionId, Client] = {}

    def add(self, connection: ConnectionId, address: str) -> Client:
        client = self._clients[connection] = Client(connection, address)
        return client

    def of(self, connection: ConnectionId) -> Client:
        return self._clients.get(connection) or self.add(connection, "")

    def at(self, address: str) -> list[ConnectionId]:
        """Those with the secret."""
        return [
            one.connection
            for one in self._clients.values()
            if one.is_authenticated and one.address == address
        ]

    def remove(self, connection: ConnectionId) -> None:
        self._clients.pop(connection, None)


def read_identity(reader: JuteReader) -> Identity | None:
    """What an AUTH request proves; None for a scheme that is not supported."""
    reader.integer()
    scheme, packet = reader.text(), reader.buffer() or b""
    return Identity(scheme, digest_identity(packet)) if scheme == SCHEME else None


def _is_same(one: Identity, other: Identity) -> bool:
    # In constant time: the duration would reveal how much of a guess is right.
    is_equal = hmac.compare_digest(one.name.encode(), other.name.encode())
    return is_equal and one.scheme == other.scheme
