"""What a broker's response to a batch means for it, and for those after it."""

from enum import Enum, auto
from typing import Final, NamedTuple

from millstream.client.retries import Failure, remedy_for
from millstream.model.ids import NO_OFFSET, Offset
from millstream.wire.errors import ErrorCode


class Answer(NamedTuple):
    """The outcome of one partition of a produce request."""

    failure: Failure
    """NONE when it was stored; an RpcError when there was no response."""
    base_offset: Offset = NO_OFFSET
    message: str | None = None
    bad_row: int | None = None
    """Which record of the batch was refused, if the broker said so."""


class Verdict(Enum):
    """What becomes of a batch."""

    STORED = auto()
    AGAIN = auto()
    """Retry the same bytes later."""
    OUT_OF_ORDER = auto()
    """The broker misses an earlier batch, or has forgotten the producer."""
    SPLIT = auto()
    """Too large."""
    FAILED = auto()
    """Not to be sent again; later batches may continue."""
    FATAL = auto()
    """This producer cannot write anything any more."""


_VERDICTS: Final = {
    ErrorCode.NONE: Verdict.STORED,
    # Stored by an earlier attempt, and so long ago that the broker forgot the offset.
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: Verdict.STORED,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict.OUT_OF_ORDER,
    ErrorCode.UNKNOWN_PRODUCER_ID: Verdict.OUT_OF_ORDER,
    ErrorCode.MESSAGE_TOO_LARGE: Verdict.SPLIT,
    ErrorCode.RECORD_LIST_TOO_LARGE: Verdict.SPLIT,
    ErrorCode.PRODUCER_FENCED: Verdict.FATAL,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Verdict.FATAL,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Verdict.FATAL,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Verdict.FATAL,
    ErrorCode.UNSUPPORTED_VERSION: Verdict.FATAL,
}

_LEFT_OPEN: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Codes with which the batch may still be in the log."""


def verdict_on(failure: Failure) -> Verdict:
    """From the response alone."""
    if isinstance(failure, ErrorCode) and failure in _VERDICTS:
        return _VERDICTS[failure]
    return Verdict.AGAIN if remedy_for(failure).is_retry else Verdict.FAILED


def leaves_open(failure: Failure) -> bool:
    """Whether the batch may be in the log although it was not acknowledged."""
    if isinstance(failure, ErrorCode):
        return failure in _LEFT_OPEN
    return getattr(failure, "may_have_been_processed", True)
