"""Requests that a broker refuses, of every API, and what their errors leave behind."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import UUID

from kits.process.wire_client import WireClient
from kits.wire.wire_messages import Case, fill
from millstream.broker.requests.registry import SERVED
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import request_type
from millstream.wire.fields import Kind
from millstream.wire.messages.api_versions import ApiVersionsRequest

LEFT_OUT = frozenset({ApiKey.BROKER_HEARTBEAT, ApiKey.UNREGISTER_BROKER})
"""These would end the broker's membership if the random numbers are right."""

PLAIN = {
    "max_wait_ms": 0,
    "timeout_ms": 5_000,
    "session_timeout_ms": 7_000,
    "rebalance_timeout_ms": 7_000,
    "acks": 1,
    "broker_id": 77,
    "assignments": [],
}
"""Fields that decide how long an answer takes, whether there is one, or who the sender is."""


class Plausible:
    """Mostly names and numbers that exist or nearly exist, so that requests come far."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def value(self, kind: Kind) -> Any:
        random = self._random
        if kind is Kind.STRING:
            return random.choice(["here", "nowhere", "", "no name!", "1", "x" * 300])
        if kind is Kind.BOOLEAN:
            return random.random() < 0.5
        if kind is Kind.UUID:
            return UUID(int=random.choice([0, 1, 2**127 + 5]))
        if kind is Kind.FLOAT64:
            return 0.5
        if kind in (Kind.BYTES, Kind.RECORDS):
            return random.randbytes(random.choice([0, 5, 80]))
        return random.choice([0, 0, 1, 2, 100])

    def is_null(self) -> bool:
        return self._random.random() < 0.1

    def is_set(self) -> bool:
        return self._random.random() < 0.5

    def count(self) -> int:
        return self._random.choice([0, 1, 1, 3])

    def unknown_tags(self) -> dict[int, bytes]:
        return {}


def drawn_request(key: ApiKey, random: Random) -> tuple[Any, int]:
    """A request and its version."""
    version = random.choice(SERVED[key].versions)
    request = fill(Case(request_type(key), version), Plausible(random))
    for name, value in PLAIN.items():
        if hasattr(request, name):
            setattr(request, name, value)
    return request, version


def send_all(bootstrap_servers: str, requests: Iterator[tuple[Any, int]]) -> int:
    """Send each, with a new connection where the broker closed the last; the answers there were."""
    answers = 0
    client = WireClient(bootstrap_servers)
    try:
        for request, version in requests:
            try:
                client.write(request, version)
                client.read_frame()
                answers += 1
            except (EOFError, ConnectionError):
                client.socket.close()
                client = WireClient(bootstrap_servers)
    finally:
        client.socket.close()
    with WireClient(bootstrap_servers) as last:  # the broker has done with all others by then
        last.write(ApiVersionsRequest(), 0)
        last.read_frame()
    return answers


@contextmanager
def garbage_errors() -> Iterator[list[BaseException]]:
    """After the block, the list has the errors that only a garbage collection would free.

    It is off inside, as nearly always in a broker, which freezes what there is.
    """
    found: list[BaseException] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [one for one in gc.garbage if isinstance(one, BaseException)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()
