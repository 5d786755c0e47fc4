"""What to fetch from one leader, request by request. Pure: no clock, nothing waits.

One fetch session with it (KIP-227): a request names only partitions whose fetch position changed,
and those that are left out for a while. So one failing partition does not disturb the others, and a
thousand idle ones cost nothing.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from millstream.model.invariant import invariant
from millstream.replication.fetch_wire import FetchAnswer, FollowedKey
from millstream.replication.follower import FetchPosition, Follower, Next
from millstream.replication.throttle import ReplicaThrottle
from millstream.wire.errors import ErrorCode

NO_SESSION: Final = 0
FIRST_REQUEST: Final = 0
_EPOCH_MAX: Final = 2**31 - 1

BACK_OFF_FIRST_S: Final = 0.02
"""Most failures are metadata that reached one broker before the other."""
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
    positions: list[tuple[FollowedKey, FetchPosition]]
    forgotten: list[FollowedKey]


def key_of(follower: Follower) -> FollowedKey:
    """The key of the partition in requests and responses."""
    return follower.topic_id.bytes, follower.partition.partition


class FetchPlan:
    """The partitions that are followed from one leader. `request` and `answered` alternate."""

    def __init__(self, throttle: ReplicaThrottle | None = None) -> None:
        self._throttle = throttle or ReplicaThrottle()
        self._followers: dict[FollowedKey, Follower] = {}
        self._session_id = NO_SESSION
        self._session_epoch = FIRST_REQUEST
        self._known: dict[FollowedKey, FetchPosition] = {}
        """The positions that the leader has in its session, including the request under way."""
        self._changed: dict[FollowedKey, None] = {}
        """Partitions to check for the next request."""
        self._resting: dict[FollowedKey, float] = {}
        """Partitions that are left out of requests, and until when."""
        self._flushing: dict[FollowedKey, None] = {}
        self._failures: dict[FollowedKey, int] = {}

    def __len__(self) -> int:
        return len(self._followers)

    def __iter__(self) -> Iterator[Follower]:
        return iter(list(self._followers.values()))

    # -- partitions ------------------------------------------------------------------------

    def add(self, follower: Follower) -> None:
        """Follow the partition from now on; call it also after its state changed."""
        key = key_of(follower)
        self._followers[key] = follower
        self._failures.pop(key, None)
        self._resting.pop(key, None)
        self._changed[key] = None

    def remove(self, follower: Follower) -> bool:
        """Stop following it. Returns whether the others were waiting for its flush: nothing else
        reports that they no longer have to.
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
        """Leave it out of requests for a while, longer each time until a fetch succeeds."""
        key = key_of(follower)
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(delay_max_s, BACK_OFF_FIRST_S * 2 ** min(failures, 16))
        self._set_rest(key, now_s + delay_s)

    def _set_rest(self, key: FollowedKey, until_s: float) -> None:
        self._resting[key] = until_s
        self._changed[key] = None

    def due_s(self) -> float:
        """When the first partition that is left out may be fetched again."""
        return min(self._resting.values(), default=FOREVER_S)

    # -- requests --------------------------------------------------------------------------

    def reset(self) -> None:
        """Start a new session: the connection is a new one and the leader knows nothing of the old
        session.
        """
        self._session_id, self._session_epoch = NO_SESSION, FIRST_REQUEST
        self._known.clear()
        self._changed = dict.fromkeys(self._followers)

    def request(self, now_s: float) -> FetchNeed | None:
        """What to send next; None while there is nothing to ask for.

        Also None during a flush: the next request acknowledges what is flushed, and the leader may
        hold a request for long that names nothing new.
        """
        for key in [key for key, until_s in self._resting.items() if until_s <= now_s]:
            del self._resting[key]
            self._changed[key] = None
        if self._flushing:
            return None
        self._hold_back(now_s)
        positions, forgotten = self._differences()
        if not self._known:
            self._session_id, self._session_epoch = NO_SESSION, FIRST_REQUEST
            return None
        session = self._session_id, self._session_epoch
        if self._session_epoch == FIRST_REQUEST:
            return FetchNeed(session, sorted(self._known.items()), [])
        return FetchNeed(session, sorted(positions), sorted(forgotten))

    def _hold_back(self, now_s: float) -> None:
        """Leave out catching-up partitions while the throttle is exceeded (KIP-73)."""
        if not self._throttle.is_exceeded(now_s):
            return
        until_s = now_s + self._throttle.wait_s(now_s)
        for key in self._changed:
            follower = self._followers.get(key)
            if follower is not None and follower.is_limited:
                self._resting[key] = max(until_s, self._resting.get(key, until_s))

    def _differences(self) -> tuple[list[tuple[FollowedKey, FetchPosition]], list[FollowedKey]]:
        """Bring `_known` up to date and return what changed."""
        positions: list[tuple[FollowedKey, FetchPosition]] = []
        forgotten: list[FollowedKey] = []
        for key in self._changed:
            follower = self._followers.get(key)
            wanted = None
            if follower is not None and key not in self._resting:
                wanted = follower.fetch_position()
            known = self._known.get(key)
            if wanted is None:
                if known is not None:
                    del self._known[key]
                    forgotten.append(key)
            elif wanted != known:
                self._known[key] = wanted
                positions.append((key, wanted))
        self._changed = {}
        return positions, forgotten

    # -- answers ---------------------------------------------------------------------------

    def answered(
        self, answer: FetchAnswer, *, now_s: float, delay_max_s: float
    ) -> tuple[bool, list[Follower]]:
        """Hand every partition its part of the response. Returns whether the response was usable,
        and the partitions whose range in the leader's log must be found (`Next.OUT_OF_RANGE`); they
        are left out until then.

        Raises MalformedFrame; the parts before the malformed one are applied.
        """
        if answer.error:
            # The leader lost the session, or never had it: fetch everything in a new one.
            self.reset()
            return answer.error in _SESSION_ERRORS, []
        self._follow_session(answer.session_id)
        lost: list[Follower] = []
        is_void = False
        for key, part in answer.parts:
            follower, position = self._followers.get(key), self._known.get(key)
            if follower is None or position is None:
                continue
            following = follower.take(position, part)
            if follower.is_limited:
                self._throttle.record(len(part.records), now_s)
            is_void = is_void or following is Next.VOID
            if following is Next.OUT_OF_RANGE:
                lost.append(follower)
            self.do(follower, following, now_s=now_s, delay_max_s=delay_max_s)
        if is_void:
            # The leader takes a high watermark that it sent in this session as known; a new session
            # resends it.
            self.reset()
        return True, lost

    def _follow_session(self, session_id: int) -> None:
        if self._session_epoch == FIRST_REQUEST:
            self._session_id = session_id
            if session_id == NO_SESSION:
                return  # the leader's session cache is full: every request is a full one
        self._session_epoch = 1 if self._session_epoch == _EPOCH_MAX else self._session_epoch + 1

    def do(self, follower: Follower, following: Next, *, now_s: float, delay_max_s: float) -> None:
        """Act on the outcome of a response, or of an attempt to find the leader's log range."""
        key = key_of(follower)
        invariant(
            self._followers.get(key) is follower,
            "I-12 a response for a partition that is not followed",
            key=key,
        )
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
