"""A Fetch request as the broker works with it, and its lean decoder.

Consumers and followers send the same few shapes thousands of times a second: those are read by a
kernel, or without it with one `struct` per partition, into tuples. Everything else (other
tagged fields, malformed bytes) is left to the generic codec, which knows everything and reports
what is wrong. Requests of thousands of partitions are not for the kernel, which cannot be
interrupted: they are decoded in a worker thread.
"""

from collections.abc import Callable
from struct import Struct, error
from typing import Final, NamedTuple

from millstream.kernels.fetch import parse
from millstream.wire.primitives import MalformedFrame, read_unsigned_varint
from millstream.wire.values import TooManyItems, begin_request, count_items

TopicKey = str | bytes
"""A topic's name, or since version 13 the 16 bytes of its id: the answer uses the same."""

FetchPartition = tuple[TopicKey, int, int, int, int, int, int]
"""Topic, partition, current leader epoch, fetch offset, last fetched epoch, the follower's log
start, maximum bytes; -1 where the version or the client does not give it."""

NO_SESSION_ID: Final = 0
FINAL_SESSION_EPOCH: Final = -1
"""The client wants no session; if it names one, that is closed."""
INITIAL_SESSION_EPOCH: Final = 0

FIRST_FLEXIBLE: Final = 12
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITHOUT_REPLICA_ID: Final = 15
_FIRST_WITH_RACK: Final = 11
_TOPIC_ID_BYTES: Final = 16

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
_REPLICA_STATE: Final = Struct(">BBBiqB")
"""One tag, number 1, its size; id and epoch, and no tags in it."""


class FetchParams(NamedTuple):
    """The fields of a Fetch request."""

    version: int
    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[TopicKey, int]]
    rack_id: str
    replica_epoch: int = -1
    """The follower's broker epoch; -1 where it sends none."""

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0

    @property
    def uses_topic_ids(self) -> bool:
        return self.version >= FIRST_WITH_TOPIC_IDS


def decode(view: memoryview, version: int) -> FetchParams:
    """Raises MalformedFrame."""
    fields = parse(view, version)
    if fields is not None:
        return FetchParams._make(fields)
    try:
        return _decode_common(view, version)
    except TooManyItems:
        raise
    except (_Uncommon, error, IndexError, UnicodeDecodeError, MalformedFrame):
        return _decode_any(view, version)


class _Uncommon(Exception):
    """Not one of the common shapes."""


# -- the common shapes -----------------------------------------------------------------------

_Row = tuple[int, ...]


def _row_reader(version: int) -> tuple[Struct, Callable[[TopicKey, _Row], FetchPartition]]:
    if version >= FIRST_FLEXIBLE:  # the last byte is the number of tagged fields
        return Struct(">iiqiqiB"), lambda key, row: (key, *row[:6])
    if version >= 9:
        return Struct(">iiqqi"), lambda key, row: (key, row[0], row[1], row[2], -1, row[3], row[4])
    if version >= 5:
        return Struct(">iqqi"), lambda key, row: (key, row[0], -1, row[1], -1, row[2], row[3])
    return Struct(">iqi"), lambda key, row: (key, row[0], -1, row[1], -1, -1, row[2])


_ROWS: Final = {version: _row_reader(version) for version in range(4, 19)}
_HEAD: Final = {
    version: Struct(
        ">"
        + ("" if version >= _FIRST_WITHOUT_REPLICA_ID else "i")
        + "iiib"
        # Versions before sessions have none.
        + ("ii" if version >= FIRST_WITH_SESSIONS else "")
    )
    for version in range(4, 19)
}


def _decode_common(view: memoryview, version: int) -> FetchParams:
    begin_request()
    fields = _HEAD[version].unpack_from(view, 0)
    at = _HEAD[version].size
    if version >= _FIRST_WITHOUT_REPLICA_ID:
        fields = (-1, *fields)
    if version < FIRST_WITH_SESSIONS:
        fields = (*fields, NO_SESSION_ID, FINAL_SESSION_EPOCH)
    parser = _Parser(view, at, version)
    partitions = parser.topics()
    forgotten = parser.forgotten() if version >= FIRST_WITH_SESSIONS else []
    rack_id = parser.text() if version >= _FIRST_WITH_RACK else ""
    replica_epoch = -1
    if version >= _FIRST_WITHOUT_REPLICA_ID and parser.view[parser.at]:
        replica_id, replica_epoch = parser.replica_state()
        fields = (replica_id, *fields[1:])
    else:
        parser.no_tags()
    if parser.at != len(view):
        raise _Uncommon
    return FetchParams._make((version, *fields, partitions, forgotten, rack_id, replica_epoch))


class _Parser:
    """A position in the request, and reads of the fields from there."""

    __slots__ = ("at", "is_flexible", "version", "view")

    def __init__(self, view: memoryview, at: int, version: int) -> None:
        self.view = view
        self.at = at
        self.version = version
        self.is_flexible = version >= FIRST_FLEXIBLE

    def count(self) -> int:
        if self.is_flexible:
            value, self.at = read_unsigned_varint(self.view, self.at)
            value -= 1
        else:
            (value,) = _INT32.unpack_from(self.view, self.at)
            self.at += 4
        if value < 0:
            raise _Uncommon
        count_items(value, self.at)
        return value

    def text(self) -> str:
        if self.is_flexible:
            size, at = read_unsigned_varint(self.view, self.at)
            size -= 1
        else:
            (size,) = _INT16.unpack_from(self.view, self.at)
            at = self.at + 2
        self.at = at + size
        if size < 0 or self.at > len(self.view):
            raise _Uncommon
        return str(self.view[at : self.at], "utf-8")

    def topic(self) -> TopicKey:
        if self.version < FIRST_WITH_TOPIC_IDS:
            return self.text()
        at = self.at
        self.at = at + _TOPIC_ID_BYTES
        return bytes(self.view[at : self.at])

    def replica_state(self) -> tuple[int, int]:
        """The only tagged field of the request; nothing else may be tagged."""
        *frame, replica_id, epoch, inner = _REPLICA_STATE.unpack_from(self.view, self.at)
        if frame != [1, 1, _REPLICA_STATE.size - 3] or inner:
            raise _Uncommon
        self.at += _REPLICA_STATE.size
        return replica_id, epoch

    def no_tags(self) -> None:
        if self.is_flexible:
            if self.view[self.at]:
                raise _Uncommon
            self.at += 1

    def topics(self) -> list[FetchPartition]:
        found: list[FetchPartition] = []
        row_struct, make = _ROWS[self.version]
        view, size, is_flexible = self.view, row_struct.size, self.is_flexible
        for _ in range(self.count()):
            key = self.topic()
            for _ in range(self.count()):
                row = row_struct.unpack_from(view, self.at)
                self.at += size
                if is_flexible and row[6]:
                    raise _Uncommon
                found.append(make(key, row))
            self.no_tags()
        return found

    def forgotten(self) -> list[tuple[TopicKey, int]]:
        found: list[tuple[TopicKey, int]] = []
        for _ in range(self.count()):
            key = self.topic()
            for _ in range(self.count()):
                found.append((key, _INT32.unpack_from(self.view, self.at)[0]))
                self.at += 4
            self.no_tags()
        return found


# -- everything else -------------------------------------------------------------------------


def _decode_any(view: memoryview, version: int) -> FetchParams:
    from millstream.wire.messages.fetch import FetchRequest

    request = FetchRequest.decode_served(view, version, is_whole=True)
    is_by_id = version >= FIRST_WITH_TOPIC_IDS
    partitions: list[FetchPartition] = [
        (
            topic.topic_id.bytes if is_by_id else topic.topic,
            one.partition,
            one.current_leader_epoch,
            one.fetch_offset,
            one.last_fetched_epoch,
            one.log_start_offset,
            one.partition_max_bytes,
        )
        for topic in request.topics
        for one in topic.partitions
    ]
    forgotten: list[tuple[TopicKey, int]] = [
        (topic.topic_id.bytes if is_by_id else topic.topic, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    ]
    has_state = version >= _FIRST_WITHOUT_REPLICA_ID
    return FetchParams(
        version,
        request.replica_state.replica_id if has_state else request.replica_id,
        request.max_wait_ms,
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        request.session_id,
        request.session_epoch,
        partitions,
        forgotten,
        request.rack_id,
        request.replica_state.replica_epoch if has_state else -1,
    )
