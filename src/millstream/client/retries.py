"""Whether to retry, what must happen before, and when: without I/O and without a clock.

Every call has a deadline. Within it, retriable errors are retried with growing backoff; final
errors are raised at once.
"""

from enum import Flag, auto
from typing import Final, NamedTuple

from millstream.client.errors import (
    AnswerUnreadable,
    BrokersUnreachable,
    ClientError,
    DeadlinePassed,
    NotSupported,
    OutcomeUnknown,
    TopicUnknown,
    error_for,
)
from millstream.rpc.backoff import Backoff
from millstream.rpc.errors import RpcError, UnsupportedApiVersion
from millstream.runtime.randomness import Randomness
from millstream.wire.errors import ErrorCode
from millstream.wire.primitives import MalformedFrame

Failure = ErrorCode | Exception
"""The failure of an attempt: an error code of the broker, an RpcError, or a ClientError."""


class Remedy(Flag):
    """What a failure requires before the next attempt."""

    GIVE_UP = 0
    BACK_OFF = auto()
    """Only wait."""
    REFRESH = auto()
    """Refresh the metadata: the cached leader, topic or controller is stale."""
    FIND_COORDINATOR = auto()
    """Find the coordinator again."""
    BOOTSTRAP = auto()
    """Drop the brokers and begin with the bootstrap addresses."""

    @property
    def is_retry(self) -> bool:
        return self is not Remedy.GIVE_UP


_REFRESH: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)
_FIND_COORDINATOR: Final = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)


def remedy_for(failure: Failure, *, may_repeat: bool = True) -> Remedy:
    """What to do about it; `may_repeat`: the request may safely be processed twice."""
    if isinstance(failure, ErrorCode):
        return _remedy_for_code(failure)
    if isinstance(failure, BrokersUnreachable):
        # The known brokers were tried with the bootstrap addresses: dropping them would not help.
        return Remedy.BACK_OFF
    if isinstance(failure, ClientError) and failure.code is not None:
        return _remedy_for_code(failure.code)
    if isinstance(failure, UnsupportedApiVersion) or not isinstance(failure, RpcError):
        return Remedy.GIVE_UP
    if failure.may_have_been_processed and not may_repeat:
        return Remedy.GIVE_UP
    # A broker that does not respond may be down, and its partitions have moved.
    return Remedy.BACK_OFF | Remedy.REFRESH | Remedy.FIND_COORDINATOR


def _remedy_for_code(code: ErrorCode) -> Remedy:
    if code in _REFRESH:
        return Remedy.BACK_OFF | Remedy.REFRESH
    if code in _FIND_COORDINATOR:
        return Remedy.BACK_OFF | Remedy.FIND_COORDINATOR
    if code is ErrorCode.REBOOTSTRAP_REQUIRED:
        return Remedy.BACK_OFF | Remedy.BOOTSTRAP
    return Remedy.BACK_OFF if code.is_retriable else Remedy.GIVE_UP


def as_client_error(failure: Failure, about: str) -> ClientError:
    """The error that the client raises for a failure that ends the call."""
    if isinstance(failure, ErrorCode):
        return error_for(failure, about=about)
    if isinstance(failure, ClientError):
        return failure
    if isinstance(failure, UnsupportedApiVersion):
        return NotSupported(about, str(failure))
    if isinstance(failure, MalformedFrame):
        return AnswerUnreadable(about, str(failure))
    return OutcomeUnknown(about, str(failure))


class Deadline(NamedTuple):
    """When a call must end, by the loop's clock."""

    at_s: float
    what: str
    """What the call does; the start of the error's text."""
    within_s: float

    @classmethod
    def after(cls, within_s: float, *, now_s: float, what: str) -> "Deadline":
        return cls(now_s + within_s, what, within_s)

    def left_s(self, now_s: float) -> float:
        return max(0.0, self.at_s - now_s)

    def error(self, last: Failure | None) -> ClientError:
        """The error to raise when it has passed."""
        if isinstance(last, BrokersUnreachable):
            return BrokersUnreachable(last.reasons, within_s=self.within_s)
        if isinstance(last, DeadlinePassed):
            last = last.last_error if isinstance(last.last_error, Exception | ErrorCode) else None
        return DeadlinePassed(self.what, within_s=self.within_s, last_error=last)


class Attempts:
    """The attempts of one call."""

    __slots__ = ("_backoff", "_randomness", "_unknown_until_s", "deadline", "failures", "last")

    def __init__(
        self,
        deadline: Deadline,
        backoff: Backoff,
        randomness: Randomness,
        *,
        unknown_until_s: float = float("inf"),
    ) -> None:
        self.deadline = deadline
        self._backoff = backoff
        self._randomness = randomness
        self._unknown_until_s = unknown_until_s
        """Until when an unknown topic is retried."""
        self.failures = 0
        self.last: Failure | None = None
        """The failure of the last one."""

    def remedy(self, failure: Failure, *, now_s: float, may_repeat: bool = True) -> Remedy:
        """`remedy_for`, but an unknown topic is final after `unknown_until_s`."""
        if isinstance(failure, TopicUnknown) and now_s >= self._unknown_until_s:
            return Remedy.GIVE_UP
        return remedy_for(failure, may_repeat=may_repeat)

    def failed(self, failure: Failure, *, now_s: float) -> float:
        """How long to wait before the next; raises when there is no time for one."""
        self.failures += 1
        self.last = failure
        pause_s = self._backoff.delay_s(self.failures, self._randomness)
        if now_s + pause_s >= self.deadline.at_s:
            raise self.deadline.error(failure) from cause_of(failure)
        return pause_s


def cause_of(failure: Failure) -> Exception | None:
    """For `raise ... from`."""
    return failure if isinstance(failure, Exception) else None
