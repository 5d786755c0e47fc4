"""What can go wrong for a user of the client; each text says what happened and what to do.

All of them can be pickled with everything they carry: Spark moves errors between its processes.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from millstream.model.errors import OperatingError
from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode


class ClientError(OperatingError):
    """Base of everything that the client raises for reasons outside of it."""

    code: ErrorCode | None = None
    """The broker's answer, where that was the reason."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors take keywords and make the text, which pickle's own way cannot repeat.
        return _revive, (type(self), self.args, self.__dict__)


def _revive(kind: type[ClientError], texts: tuple[Any, ...], facts: dict[str, Any]) -> ClientError:
    error = kind.__new__(kind)
    error.args = texts
    error.__dict__.update(facts)
    return error


class ConfigInvalid(ClientError):
    """A setting of the client that cannot be; nothing was connected."""


class RangeInvalid(ClientError, ValueError):
    """A range of offsets, or a partition, that no log can have; nothing was asked for."""


class ClientClosed(ClientError):
    """The client was closed while, or before, it was asked for something."""

    def __init__(self) -> None:
        super().__init__("the client is closed; make a new one")


class BrokersUnreachable(ClientError):
    """No broker could be reached at any of the addresses."""

    def __init__(self, reasons: Mapping[str, str], *, within_s: float | None = None) -> None:
        self.reasons = dict(reasons)
        """By `host:port`, the last one of each."""
        tried = "; ".join(f"{_reason(at, why)}" for at, why in self.reasons.items())
        time = f" within {seconds(within_s)} s" if within_s is not None else ""
        super().__init__(
            f"no broker could be reached{time} ({tried or 'no address was tried'}): check"
            " bootstrap.servers, and that the addresses which brokers advertise can be reached"
        )


def seconds(time_s: float) -> str:
    """A time as it was meant, not as it was computed."""
    return f"{round(time_s, 1 if time_s >= 1 else 3):g}"


def _reason(address: str, why: str) -> str:
    return why if why.startswith(address) else f"{address}: {why}"


class DeadlinePassed(ClientError):
    """Not done in the time that was given; it may still have happened, or happen later."""

    def __init__(
        self,
        what: str,
        *,
        within_s: float | None = None,
        last_error: object = None,
        setting: str = "default.api.timeout.ms",
    ) -> None:
        """`setting`: which one gives more time."""
        self.what, self.within_s = what, within_s
        self.last_error = last_error
        """What the last attempt met: an error or an ErrorCode; None when nothing failed."""
        time = f" within {seconds(within_s)} s" if within_s is not None else " in time"
        last = f"; the last attempt met: {told(last_error)}" if last_error is not None else ""
        super().__init__(
            f"{what}: not done{time}{last}; see whether the brokers are well, or allow more time"
            f" ({setting})"
        )


class OutcomeUnknown(ClientError):
    """The connection was lost before the answer, and the request must not be sent twice."""

    def __init__(self, what: str, why: str) -> None:
        self.what = what
        super().__init__(
            f"{what}: whether it was done is not known ({why}); look, and repeat it if it was not"
        )


class TopicUnknown(ClientError):
    """The cluster has no such topic, or the topic no such partition."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def __init__(self, topic: str, *, partition: int | None = None) -> None:
        self.topic, self.partition = topic, partition
        if partition is None:
            text = f"there is no topic {topic!r}; create it, or correct the name"
        else:
            text = f"topic {topic!r} has no partition {partition}"
        super().__init__(text)


class TopicInvalid(ClientError):
    """A name that no topic can have, or a topic that cannot be used like this."""

    code = ErrorCode.INVALID_TOPIC_EXCEPTION

    def __init__(self, topic: str, message: str | None = None) -> None:
        self.topic = topic
        why = message or "a name has 1 to 249 letters, digits, dots, dashes and underscores"
        super().__init__(f"topic {topic!r} is not possible: {why}")


class TopicExists(ClientError):
    """A topic of that name is there already."""

    code = ErrorCode.TOPIC_ALREADY_EXISTS

    def __init__(self, topic: str, *, may_be_ours: bool = False) -> None:
        self.topic = topic
        self.may_be_ours = may_be_ours
        """An answer of this very call was lost, so it may have made the topic itself."""
        lost = " (perhaps made by this call: one of its answers was lost)" if may_be_ours else ""
        super().__init__(f"topic {topic!r} exists already{lost}; use it, or take another name")


class TopicRecreated(ClientError):
    """The topic was deleted and made again: its offsets mean other records now."""

    def __init__(self, topic: str, *, old_id: TopicId, new_id: TopicId) -> None:
        self.topic, self.old_id, self.new_id = topic, old_id, new_id
        super().__init__(
            f"topic {topic!r} was deleted and created again (id {old_id} is now {new_id}): offsets"
            " of the old topic are worthless; begin anew with offsets of the new one"
        )


class OffsetOutOfRange(ClientError):
    """A wanted offset is not in the log: too old and removed, or beyond the end."""

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
            why = f"the log ends at {end}: it was cut, or is not the log that the offset is from"
        else:
            why = f"the log has [{_told_offset(start)}, {_told_offset(end)})"
        super().__init__(f"{partition}: offset {wanted} is not there; {why}; choose another start")


class LogTruncated(ClientError):
    """A log was cut below what was read of it: some of those records were lost, or replaced."""

    def __init__(self, partition: TopicPartition, *, position: Offset, diverges_at: Offset) -> None:
        self.partition, self.position, self.diverges_at = partition, position, diverges_at
        super().__init__(
            f"{partition}: the log was cut at {diverges_at} after it was read up to {position} (an"
            " unclean election?): records from there on were lost; decide where to go on"
        )


class RecordsUnreadable(ClientError):
    """Stored records are damaged, or of a format that is too old."""

    def __init__(self, partition: TopicPartition, *, offset: Offset, why: str) -> None:
        self.partition, self.offset = partition, offset
        super().__init__(
            f"{partition}: the batch at offset {offset} cannot be read ({why}); read on behind it,"
            " or delete the records up to there"
        )


def _told_offset(offset: Offset | None) -> str:
    return "?" if offset is None else str(offset)


class NotAuthorized(ClientError):
    """The broker does not allow it to this client."""

    def __init__(self, code: ErrorCode, about: str, message: str | None = None) -> None:
        self.code, self.about = code, about
        super().__init__(f"{about}: {message or code.text}; ask for the rights, or log in")


class RecordTooLarge(ClientError):
    """A record, or the batch it is in, is above what the topic or the broker takes."""

    def __init__(
        self,
        code: ErrorCode,
        about: str,
        message: str | None = None,
        *,
        place: tuple[int, int] | None = None,
    ) -> None:
        self.code, self.about = code, about
        self.place = place
        """Of a writer of columns: which write, from 1, and which row of it, from 0."""
        super().__init__(
            f"{about}: {message or code.text}; send smaller records, or raise max.message.bytes of"
            " the topic and max.request.size here"
        )


class RequestRefused(ClientError):
    """The broker refused it with a code that has no type of its own here."""

    def __init__(self, code: ErrorCode, about: str, message: str | None = None) -> None:
        self.code, self.about = code, about
        super().__init__(f"{about}: {message or code.text} ({code.name})")


class NotSupported(ClientError):
    """The broker is too old for it, or does not offer it."""

    code = ErrorCode.UNSUPPORTED_VERSION

    def __init__(self, about: str, why: str) -> None:
        self.about = about
        super().__init__(f"{about} is not possible with this broker: {why}")


class AnswerUnreadable(ClientError):
    """The broker's answer breaks the protocol: a bug there or here, and trying again is no use."""

    def __init__(self, about: str, why: str) -> None:
        self.about = about
        super().__init__(f"{about}: the broker's answer cannot be read ({why})")


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
    """The error that a code means; `message` is the broker's own text, if it gave one."""
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
    """The code of a number from the wire; one we do not know is a failure of the broker."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def told(failure: object) -> str:
    """A failure of an attempt for people."""
    if isinstance(failure, ErrorCode):
        return f"{failure.text} ({failure.name})"
    return str(failure) or type(failure).__name__
