"""Which connections are closed for memory: those of the address that holds most for longest.

What closing a connection frees is weighed by how long it has been held. Addresses come first, then
the connections of each: a client that holds little in each of a thousand connections holds more
than one that is sending a large request.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.model.limits import REQUEST_MEMORY_WAIT_S

if TYPE_CHECKING:
    from millstream.broker.net.peer import ClientPeer
    from millstream.broker.requests.account import Account

GRACE_S: Final = 1.0
"""Added to the time for which memory is held: of those that just came the largest is closed."""

AGE_MAX_S: Final = REQUEST_MEMORY_WAIT_S
"""Held for longer counts as if for so long: a consumer that has waited for hours with a small
request is no burden."""


class Burden(NamedTuple):
    """What a connection holds, and closing it frees."""

    peer: "ClientPeer"
    freed_bytes: int
    weight: float
    """The bytes, each times how long it has been held."""


def burden_of(peer: "ClientPeer", now_s: float, *, is_next: bool = False) -> Burden:
    """Of requests, those on which no task works: the others stay in memory until they are done.

    `is_next`: its request has its turn for memory, and is not closed to make room for itself.
    """
    account = peer.account
    freed = account.idle_bytes + account.small_bytes
    weight = account.idle_bytes * _age_s(account.since_s, now_s)
    weight += account.small_bytes * _age_s(account.small_since_s, now_s)
    for number, one in account.idle.items():
        if not (is_next and one.waits_for_memory):
            freed += account.charges[number]
            weight += account.charges[number] * _age_s(one.since_s, now_s)
    return Burden(peer, freed, weight)


def _age_s(since_s: float | None, now_s: float) -> float:
    return GRACE_S if since_s is None else min(now_s - since_s, AGE_MAX_S) + GRACE_S


def to_close(
    peers: Iterable["ClientPeer"],
    need_bytes: int,
    now_s: float,
    *,
    next_one: "Account | None" = None,
    claim_bytes: int = 0,
) -> list["ClientPeer"]:
    """The worst ones, in this order, that together free so much; none if that is impossible.

    Who claims so many bytes for itself makes no room at the cost of addresses that hold less.
    """
    by_address: dict[str, list[Burden]] = {}
    for peer in peers:
        account = peer.account
        if peer.is_open and not account.is_broker:
            one = burden_of(peer, now_s, is_next=account is next_one)
            if one.freed_bytes:
                by_address.setdefault(account.address, []).append(one)
    worst = []
    for address, burdens in by_address.items():
        burdens.sort(key=lambda one: one.weight)
        worst.append((-sum(one.weight for one in burdens), address))
    heapify(worst)
    chosen: list[ClientPeer] = []
    while need_bytes > 0:
        if not worst or -worst[0][0] <= claim_bytes * GRACE_S:
            return []
        weight, address = heappop(worst)
        one = by_address[address].pop()
        chosen.append(one.peer)
        need_bytes -= one.freed_bytes
        if by_address[address]:
            heappush(worst, (weight + one.weight, address))
    return chosen
