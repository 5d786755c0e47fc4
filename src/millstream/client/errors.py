"""Errors of the client; each text says what happened and what to do.

All can be pickled with their attributes: Spark passes errors between its processes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from millstream.model.errors import OperatingError
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode


class ClientError(OperatingError):
    """Base of all operating errors of the client."""

    code: ErrorCode | None = None
    """The broker's error code, if that was the reason."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take keywords and build the text, which pickle's default cannot repeat.
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[ClientError], texts: tuple[Any, ...], facts: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind)
    error.args = texts
    error.__dict__.update(facts)
    return error


class ConfigInvalid(ClientError):
    """An invalid setting of the client; no connection was made."""


class RangeInvalid(ClientError, ValueError):
    """An invalid range of offsets or partition number; no request was sent."""


class ClientClosed(ClientError):
    """The client was closed before or during the call."""

    def __init__(self) -> None:
        super().__init__("the client is closed; create a new one")


class BrokersUnreachable(ClientError):
    """No broker could be reached at any of the addresses."""

    def __init__(self, reasons: Mapping[str, str], *, within_s: float | None = None) -> None:
        self.reasons = dict(reasons)
        """By `host:port`, the last reason of each."""
        tried = "; ".join(f"{_reason(at, why)}" for at, why in self.reasons.items())
        time = f" within {seconds(within_s)} s" if within_s is not None else ""
        super().__init__(
            f"no broker could be reached{time} ({tried or 'no address was tried'}): check"
            " bootstrap.servers, and that the brokers' advertised listeners can be reached from"
            " here"
        )


def seconds(time_s: float) -> str:
    """A duration rounded for people."""
    return f"{round(time_s, 1 if time_s >= 1 else 3):g}"


def _reason(address: str, why: str) -> str:
    return why if why.startswith(address) else f"{address}: {why}"


class DeadlinePassed(ClientError):
    """Not done within the deadline; it may still have happened, or happen later."""

    def __init__(
        self,
        what: str,
        *,
        within_s: float | None = None,
        last_error: object = None,
        setting: str = "default.api.timeout.ms",
    ) -> None:
        """`setting`: the one to raise for more time."""
        self.what, self.within_s = what, within_s
        self.last_error = last_error
        """The failure of the last attempt: an error or an ErrorCode; None when none failed."""
        time = f" after {seconds(within_s)} s" if within_s is not None else ""
        last = f"; last error: {describe_failure(last_error)}" if last_error is not None else ""
        super().__init__(
            f"{what}: timed out{time}{last}; check that the brokers are healthy, or raise {setting}"
        )


class OutcomeUnknown(ClientError):
    """The connection was lost before the response, and the request must not be sent twice."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        super().__init__(
            f"{what}: it is unknown whether it was done ({why}); check, and retry if it was not"
        )


class TopicUnknown(ClientError):
    """The cluster has no such topic, or the topic no such partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def __init__(self, topic: str, *, partition: int | None = None) -> None:
        self.topic, self.partition = topic, partition
        if partition is None:
            text = f"topic {topic!r} does not exist; create it, or correct the name"
        else:
            text = (
                f"topic {topic!r} has no partition {partition}; choose another, or add partitions"
            )
        super().__init__(text)


class TopicInvalid(ClientError):
    """An invalid topic name, or a topic that cannot be used like this."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION

    def __init__(self, topic: str, message: str | None = None) -> None:
        self.topic = topic
        why = message or "a name has 1 to 249 letters, digits, dots, dashes and underscores"
        super().__init__(f"invalid topic {topic!r}: {why}")


class TopicExists(ClientError):
    """A topic of that name already exists."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS

    def __init__(self, topic: str, *, may_be_ours: bool = False) -> None:
        self.topic = topic
        self.may_be_ours = may_be_ours
        """A response of this call was lost, so it may have created the topic itself."""
        lost = " (perhaps created by this call: a response was lost)" if may_be_ours else ""
        super().__init__(f"topic {topic!r} already exists{lost}; use it, or choose another name")


class TopicRecreated(ClientError):
    """The topic was deleted and created again: its offsets mean other records now."""

    def __init__(self, topic: str, *, old_id: TopicId, new_id: TopicId) -> None:
        self.topic, self.old_id, self.new_id = topic, old_id, new_id
        super().__init__(
            f"topic {topic!r} was deleted and created again (id {old_id} is now {new_id}): offsets"
            " of the old topic are invalid; start again with offsets of the new one"
        )


class OffsetOutOfRange(ClientError):
    """A requested offset is not in the log: already removed, or beyond the end."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(
        self,
        partition: TopicPartition,
        *,
        wanted: Offset,
        start: Offset | None = None,
        end: Offset | None = None,
    ) -> None:
        self.partition, self.wanted, self.start, self.end = partition, wanted, start, end
        if start is not None and wanted < start:
            why = f"the log begins at {start}: records before it were removed"
        elif end is not None and wanted > end:
            why = f"the log ends at {end}: it was truncated, or the offset is from another log"
        else:
            why = f"the log's offsets are [{_format_offset(start)}, {_format_offset(end)})"
        super().__init__(
            f"{partition}: offset {wanted} is out of range; {why}; choose another start offset"
        )


class LogTruncated(ClientError):
    """A log was truncated below the read position: some records were lost, or replaced."""

    def __init__(self, partition: TopicPartition, *, position: Offset, diverges_at: Offset) -> None:
        self.partition, self.position, self.diverges_at = partition, position, diverges_at
        super().__init__(
            f"{partition}: the log was truncated at {diverges_at} after it was read up to"
            f" {position} (an unclean leader election?): records from there on were lost; decide"
            " where to continue"
        )


class RecordsUnreadable(ClientError):
    """Stored records are damaged, or of a format that is too old."""

    def __init__(self, partition: TopicPartition, *, offset: Offset, why: str) -> None:
        self.partition, self.offset = partition, offset
        super().__init__(
            f"{partition}: the batch at offset {offset} cannot be read ({why}); continue after it,"
            " or delete the records up to there"
        )


def _format_offset(offset: Offset | None) -> str:
    return "?" if offset is None else str(offset)


class NotAuthorized(ClientError):
    """The broker does not authorize this client."""

    def __init__(self, code: ErrorCode, about: str, message: str | None = None) -> None:
        self.code, self.about = code, about
        super().__init__(
            f"{about}: {message or code.text}; request the permission, or use another listener"
        )


class RecordTooLarge(ClientError):
    """A record, or its batch, is larger than the topic or the broker allows."""

    def __init__(
        self,
        code: ErrorCode,
        about: str,
        message: str | None = None,
        *,
        write_and_row: tuple[int, int] | None = None,
    ) -> None:
        self.code, self.about = code, about
        self.write_and_row = write_and_row
        """Of a column writer: which write, from 1, and which row of it, from 0."""
        super().__init__(
            f"{about}: {message or code.text}; send smaller records, or raise max.message.bytes of"
            " the topic and max.request.size of the client"
        )


class RequestRefused(ClientError):
    """The broker refused it with a code that has no error class of its own."""

    def __init__(self, code: ErrorCode, about: str, message: str | None = None) -> None:
        self.code, self.about = code, about
        super().__init__(f"{about}: {message or code.text} ({code.name})")


class NotSupported(ClientError):
    """The broker is too old for it, or does not offer it."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, about: str, why: str) -> None:
        self.about = about
        super().__init__(f"{about}: not supported by this broker: {why}")


class AnswerUnreadable(ClientError):
    """The broker's response violates the protocol: a bug there or here; a retry is pointless."""

    def __init__(self, about: str, why: str) -> None:
        self.about = about
        super().__init__(
            f"{about}: the broker's response cannot be decoded ({why}); this is a bug, report it"
        )


_REFUSALS: Final[Mapping[ErrorCode, Callable[[ErrorCode, str, str | None], ClientError]]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: NotAuthorized,
    ErrorCode.SASL_AUTHENTICATION_FAILED: NotAuthorized,
    ErrorCode.MESSAGE_TOO_LARGE: RecordTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordTooLarge,
}
_UNKNOWN: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


def error_for(
    code: ErrorCode,
    *,
    about: str = "the request",
    topic: str | None = None,
    partition: int | None = None,
    message: str | None = None,
) -> ClientError:
    """The error for a code; `message` is the broker's own text, if it sent one."""
    if topic is not None:
        about = topic if partition is None else f"{topic}-{partition}"
        if code in _UNKNOWN:
            return TopicUnknown(topic, partition=partition)
        if code is ErrorCode.INVALID_TOPIC_EXCEPTION:
            return TopicInvalid(topic, message)
        if code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return TopicExists(topic)
    if code is ErrorCode.UNSUPPORTED_VERSION:
        return NotSupported(about, message or code.text)
    return _REFUSALS.get(code, RequestRefused)(code, about, message)


def code_of(number: int) -> ErrorCode:
    """The code of a number from the wire; an unknown one is UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def describe_failure(failure: object) -> str:
    """A failure of an attempt as text."""
    if isinstance(failure, ErrorCode):
        return f"{failure.text} ({failure.name})"
    return str(failure) or type(failure).__name__
