"""How much may be copied in a second to replicas that catch up. Pure: no clock, nothing waits.

Moving partitions to another broker must not take the network and the disks from everybody else
(KIP-73). Only copies to replicas that are not in sync count and wait: one that is in sync and had
to wait would fall out of sync, and acks=all would wait with it.

A bucket that leaks: what was copied flows off at the rate, and nothing more is copied while there
is some left. An answer is as large as it is; the next one waits the longer for it.
"""

import re
from collections.abc import Callable, Container
from typing import Final

from millstream.model.ids import BrokerId

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"

UNLIMITED: Final = float("inf")
CREDIT_S: Final = 1.0
"""Of a time in which little was copied this much is made up for: a fetch may wait for longer than
it should, and the rate would never be reached."""
LOOK_AGAIN_S: Final = 1.0
"""At the latest: the rate may be another by then."""

WAIT_S_MIN: Final = 0.001
"""A part of a byte that is left would be waited for by no time at all, for ever."""

_ALL: Final = "*"
_EVERY_PARTITION: Final = range(2**31)
_REPLICA: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10})")


def listed_partitions(text: str | None, broker_id: BrokerId | None) -> Container[int]:
    """The partitions of a topic whose replica on this broker a setting names."""
    if not text:
        return ()
    if text.strip() == _ALL:
        return _EVERY_PARTITION
    found = [_REPLICA.fullmatch(one.strip()) for one in text.split(",")]
    return {int(one[1]) for one in found if one is not None and int(one[2]) == broker_id}


class ReplicaThrottle:
    """Of one broker: for all that it sends as a leader, or gets as a follower."""

    __slots__ = ("_left", "_rate", "_seen_s")

    def __init__(self, rate: Callable[[], float] = lambda: UNLIMITED) -> None:
        """`rate`: bytes in a second, as it is now."""
        self._rate = rate
        self._left = 0.0
        """Bytes that have not flowed off; below 0 it is credit."""
        self._seen_s = 0.0

    def record(self, size_bytes: int, now_s: float) -> None:
        """So much was copied."""
        self._flow(now_s)
        self._left += size_bytes

    def is_exceeded(self, now_s: float) -> bool:
        """Whether nothing more shall be copied now."""
        self._flow(now_s)
        return self._left > 0

    def wait_s(self, now_s: float) -> float:
        """For how long; never for so long that a new rate would be missed."""
        rate = self._flow(now_s)
        if self._left <= 0:
            return 0.0
        if self._left >= rate * LOOK_AGAIN_S:
            return LOOK_AGAIN_S
        return max(WAIT_S_MIN, self._left / rate)

    def _flow(self, now_s: float) -> float:
        rate, passed_s = self._rate(), max(0.0, now_s - self._seen_s)
        self._seen_s = now_s
        if rate == UNLIMITED:
            self._left = 0.0
        else:
            self._left = max(-rate * CREDIT_S, self._left - rate * passed_s)
        return rate
