"""What one leader is asked for, request by request. Pure: no clock, nothing waits.

One fetch session with it (KIP-227): a request names only partitions whose place changed, and those
that are left out for a while. So one partition in trouble does not disturb the others, and a
thousand quiet ones cost nothing.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.model.invariant import invariant
from millstream.replication.fetch_wire import FetchAnswer, FollowedKey
from millstream.replication.follower import Asked, Follower, Next
from millstream.replication.throttle import ReplicaThrottle
from millstream.wire.errors import ErrorCode

NO_SESSION: Final = 0
FIRST_REQUEST: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

BACK_OFF_FIRST_S: Final = 0.02
"""Most trouble is metadata that reached one broker before the other."""
FOREVER_S: Final = float("inf")

_SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)


class FetchNeed(NamedTuple):
    """A request to be sent."""

    session: tuple[int, int]
    """Id and epoch."""
    asked: list[tuple[FollowedKey, Asked]]
    forgotten: list[FollowedKey]


def key_of(follower: Follower) -> FollowedKey:
    """As requests and answers name it."""
    return follower.topic_id.bytes, follower.partition.partition


class FetchPlan:
    """The partitions that are followed from one leader. `request`, then `answered`, in turns."""

    def __init__(self, throttle: ReplicaThrottle | None = None) -> None:
        self._throttle = throttle or ReplicaThrottle()
        self._followers: dict[FollowedKey, Follower] = {}
        self._session_id = NO_SESSION
        self._session_epoch = FIRST_REQUEST
        self._known: dict[FollowedKey, Asked] = {}
        """What the leader believes to be asked for: of the request under way, if there is one."""
        self._changed: dict[FollowedKey, None] = {}
        """Partitions to look at for the next request."""
        self._resting: dict[FollowedKey, float] = {}
        """Partitions that are left out, and until when."""
        self._flushing: dict[FollowedKey, None] = {}
        self._failures: dict[FollowedKey, int] = {}

    def __len__(self) -> int:
        return len(self._followers)

    def __iter__(self) -> Iterator[Follower]:
        return iter(list(self._followers.values()))

    # -- partitions ------------------------------------------------------------------------

    def add(self, follower: Follower) -> None:
        """Follow it from now on; also after its state changed."""
        key = key_of(follower)
        self._followers[key] = follower
        self._failures.pop(key, None)
        self._resting.pop(key, None)
        self._changed[key] = None

    def remove(self, follower: Follower) -> bool:
        """Follow it no more. Whether the others had to wait for its flush: nobody else says that
        they need not any more.
        """
        key = key_of(follower)
        if self._followers.get(key) is not follower:
            return False
        del self._followers[key]
        self._failures.pop(key, None)
        self._resting.pop(key, None)
        self._changed[key] = None
        if key not in self._flushing:
            return False
        del self._flushing[key]
        return True

    def holds(self, follower: Follower) -> bool:
        return self._followers.get(key_of(follower)) is follower

    def ready(self, follower: Follower) -> None:
        """Its flush is done."""
        key = key_of(follower)
        self._flushing.pop(key, None)
        if self._followers.get(key) is follower:
            self._changed[key] = None

    def rest(self, follower: Follower, *, now_s: float, delay_max_s: float) -> None:
        """Leave it out for a while, longer each time until something comes of it."""
        key = key_of(follower)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(delay_max_s, BACK_OFF_FIRST_S * 2 ** min(failures, 16))
        self._set_rest(key, now_s + delay_s)

    def _set_rest(self, key: FollowedKey, until_s: float) -> None:
        self._resting[key] = until_s
        self._changed[key] = None

    def due_s(self) -> float:
        """When the first of those that rest may be asked for again."""
        return min(self._resting.values(), default=FOREVER_S)

    # -- requests --------------------------------------------------------------------------

    def reset(self) -> None:
        """The leader knows nothing of what was asked before: the connection is a new one."""
        self._session_id, self._session_epoch = NO_SESSION, FIRST_REQUEST
        self._known.clear()
        self._changed = dict.fromkeys(self._followers)

    def request(self, now_s: float) -> FetchNeed | None:
        """What to send next; None while there is nothing to ask for.

        Nor while something is flushed: the next request acknowledges that, and a leader may hold
        it for long if it names nothing new.
        """
        for key in [key for key, until_s in self._resting.items() if until_s <= now_s]:
            del self._resting[key]
            self._changed[key] = None
        if self._flushing:
            return None
        self._hold_back(now_s)
        asked, forgotten = self._differences()
        if not self._known:
            self._session_id, self._session_epoch = NO_SESSION, FIRST_REQUEST
            return None
        session = self._session_id, self._session_epoch
        if self._session_epoch == FIRST_REQUEST:
            return FetchNeed(session, sorted(self._known.items()), [])
        return FetchNeed(session, sorted(asked), sorted(forgotten))

    def _hold_back(self, now_s: float) -> None:
        """Leave those out that catch up, while they have had as much as they may (KIP-73)."""
        if not self._throttle.is_exceeded(now_s):
            return
        until_s = now_s + self._throttle.wait_s(now_s)
        for key in self._changed:
            follower = self._followers.get(key)
            if follower is not None and follower.is_limited:
                self._resting[key] = max(until_s, self._resting.get(key, until_s))

    def _differences(self) -> tuple[list[tuple[FollowedKey, Asked]], list[FollowedKey]]:
        """Let `_known` be what is wanted now."""
        asked: list[tuple[FollowedKey, Asked]] = []
        forgotten: list[FollowedKey] = []
        for key in self._changed:
            follower = self._followers.get(key)
            wanted = None
            if follower is not None and key not in self._resting:
                wanted = follower.ask()
            known = self._known.get(key)
            if wanted is None:
                if known is not None:
                    del self._known[key]
                    forgotten.append(key)
            elif wanted != known:
                self._known[key] = wanted
                asked.append((key, wanted))
        self._changed = {}
        return asked, forgotten

    # -- answers ---------------------------------------------------------------------------

    def answered(
        self, answer: FetchAnswer, *, now_s: float, delay_max_s: float
    ) -> tuple[bool, list[Follower]]:
        """Let every partition take its part. Whether the answer was of use; and the partitions
        whose place in the leader's log is to be found out (`Next.OUT_OF_RANGE`), which rest.

        MalformedFrame comes through, with what was before it taken.
        """
        if answer.error:
            # The leader lost the session, or never had it: ask for everything again.
            self.reset()
            return answer.error in _SESSION_ERRORS, []
        self._follow_session(answer.session_id)
        lost: list[Follower] = []
        is_void = False
        for key, part in answer.parts:
            follower, asked = self._followers.get(key), self._known.get(key)
            if follower is None or asked is None:
                continue
            following = follower.take(asked, part)
            if follower.is_limited:
                self._throttle.record(len(part.records), now_s)
            is_void = is_void or following is Next.VOID
            if following is Next.OUT_OF_RANGE:
                lost.append(follower)
            self.do(follower, following, now_s=now_s, delay_max_s=delay_max_s)
        if is_void:
            # To the session a high watermark that was sent is known; in a new one nothing is.
            self.reset()
        return True, lost

    def _follow_session(self, session_id: int) -> None:
        if self._session_epoch == FIRST_REQUEST:
            self._session_id = session_id
            if session_id == NO_SESSION:
                return  # it has no room for one: everything is asked for each time
        self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1

    def do(self, follower: Follower, following: Next, *, now_s: float, delay_max_s: float) -> None:
        """What an answer, or an attempt to set a partition right, came to."""
        key = key_of(follower)
        invariant(self._followers.get(key) is follower, "I-12 an answer for nobody", key=key)
        if following is Next.BACK_OFF:
            self.rest(follower, now_s=now_s, delay_max_s=delay_max_s)
            return
        if following in (Next.METADATA, Next.FAILED, Next.OUT_OF_RANGE):
            self._set_rest(key, FOREVER_S)
            return
        self._failures.pop(key, None)
        self._resting.pop(key, None)
        self._changed[key] = None
        if following is Next.WAIT:
            self._flushing[key] = None
