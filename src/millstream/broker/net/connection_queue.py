"""Connections with requests that wait for a turn, by address first and then by connection.

A client with five hundred connections has the share of one with a single one: each address gets the
same time, and so does each connection of an address. Each connection of a broker of this cluster
has a share like an address: what it sends is for all clients, and several brokers and clients may
come from one machine.
"""

from typing import Final

from millstream.broker.net.peer import ClientPeer
from millstream.runtime.fair_queue import FairQueue

Share = str | ClientPeer

CREDIT_S: Final = 0.01
"""What new clients may have at once beyond their share, for each that waits: a few
requests of a few of them, so that one that asks rarely does not wait behind another such."""

_IDLE_SHARES_MAX: Final = 256
"""Addresses without waiting connections whose connections' charges are remembered."""


class ConnectionQueue:
    """After each `next` comes a `served`."""

    def __init__(self) -> None:
        self._shares: FairQueue[Share] = FairQueue(credit=CREDIT_S)
        self._members: dict[Share, FairQueue[ClientPeer]] = {}
        self._waiting: dict[ClientPeer, Share] = {}
        self._taken: Share | None = None
        """Of the turn that is being taken: it waits again when its cost is known."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, peer: ClientPeer) -> None:
        if peer in self._waiting:
            return
        share = self._waiting[peer] = share_of(peer)
        members = self._members.get(share)
        if members is None:
            members = self._members[share] = FairQueue(credit=CREDIT_S)
        members.add(peer)
        if share != self._taken:
            self._shares.add(share)

    def next(self) -> ClientPeer:
        """Whose turn it is; there must be one."""
        share = self._taken = self._shares.pop()
        peer = self._members[share].pop()
        del self._waiting[peer]
        return peer

    def served(self, peer: ClientPeer, cost_s: float) -> None:
        """The turn has ended and took so long. What the peer has left to do is added after."""
        share, self._taken = self._taken, None
        if share is None:
            return
        members = self._members[share]
        members.charge(peer, cost_s)
        self._shares.charge(share, cost_s)
        if members:
            self._shares.add(share)
        if len(self._members) > _IDLE_SHARES_MAX + len(self._shares):
            self._members = {one: queue for one, queue in self._members.items() if queue}

    def remove(self, peer: ClientPeer) -> None:
        """It has ended."""
        share = self._waiting.pop(peer, None) or share_of(peer)
        members = self._members.get(share)
        if members is None:
            return
        members.forget(peer)
        if not members:
            self._shares.discard(share)  # what the address was charged stays

    def forget_costs(self) -> None:
        """No connection waits: from now on all are equal again."""
        if self._members:
            self._shares = FairQueue(credit=CREDIT_S)
            self._members.clear()


def share_of(peer: ClientPeer) -> Share:
    """Whose time its requests take."""
    return peer.client_host if peer.proven_broker is None else peer
