"""Limits the bytes per second copied to replicas that catch up. Pure: no clock, nothing waits.

Moving partitions to another broker must not take the network and the disks from other clients
(KIP-73). Only copies to replicas that are not in sync are counted and delayed: an in-sync replica
that had to wait would fall out of sync, and acks=all would wait with it.

A leaky bucket: what was copied drains at the configured rate, and nothing more is copied while some
is left. A response is never cut short; the next one just waits longer.
"""

import re
from collections.abc import Callable, Container
from typing import Final

from millstream.model.ids import BrokerId

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

UNLIMITED: Final = float("inf")
CREDIT_S: Final = 1.0
"""Unused rate can be made up for this long: a fetch may wait longer than it should, and the rate
would otherwise never be reached."""
RATE_CHECK_INTERVAL_S: Final = 1.0
"""The longest wait: the configured rate may have changed by then."""

WAIT_S_MIN: Final = 0.001
"""A remaining fraction of a byte would otherwise be waited for with no delay, forever."""

_ALL: Final = "*"
_EVERY_PARTITION: Final = range(2**31)
_REPLICA: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


def listed_partitions(text: str | None, broker_id: BrokerId | None) -> Container[int]:
    """The partitions of a topic whose replica on this broker is listed in a setting."""
    if not text:
        return ()
    if text.strip() == _ALL:
        return _EVERY_PARTITION
    found = [_REPLICA.fullmatch(one.strip()) for one in text.split(",")]
    return {int(one[1]) for one in found if one is not None and int(one[2]) == broker_id}


class ReplicaThrottle:
    """The throttle of one broker, for everything it sends as a leader or fetches as a follower."""

    __slots__ = ("_left", "_rate", "_seen_s")

    def __init__(self, rate: Callable[[], float] = lambda: UNLIMITED) -> None:
        """`rate`: the current limit in bytes per second."""
        self._rate = rate
        self._left = 0.0
        """Bytes that have not drained; negative is credit."""
        self._seen_s = 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        """Count copied bytes."""
        self._flow(now_s)
        self._left += size_bytes

    def is_exceeded(self, now_s: float) -> bool:
        """Whether nothing more may be copied now."""
        self._flow(now_s)
        return self._left > 0

    def wait_s(self, now_s: float) -> float:
        """How long to wait, at most until a changed rate is to be checked."""
        rate = self._flow(now_s)
        if self._left <= 0:
            return 0.0
        if self._left >= rate * RATE_CHECK_INTERVAL_S:
            return RATE_CHECK_INTERVAL_S
        return max(WAIT_S_MIN, self._left / rate)

    def _flow(self, now_s: float) -> float:
        rate, passed_s = self._rate(), max(0.0, now_s - self._seen_s)
        self._seen_s = now_s
        if rate == UNLIMITED:
            self._left = 0.0
        else:
            self._left = max(-rate * CREDIT_S, self._left - rate * passed_s)
        return rate
