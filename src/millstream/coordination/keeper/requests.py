"""Requests as values, read from the wire. What is not what it should be is MalformedRequest."""

from typing import Final, NamedTuple

from millstream.coordination.keeper.jute import JuteReader, MalformedRequest
from millstream.coordination.keeper.protocol import Op
from millstream.model.ids import SessionId, Zxid

_ACL_BYTES_MIN: Final = 12
_MULTI_HEADER_BYTES: Final = 9
_MULTI_END: Final = -1


class Acl(NamedTuple):
    """One entry of an access list."""

    permissions: int
    scheme: str
    identity: str


class ConnectRequest(NamedTuple):
    """The first frame of a connection."""

    last_zxid_seen: Zxid
    timeout_ms: int
    session_id: SessionId
    password: bytes
    knows_read_only: bool
    """Whether the client sends the last field, which the oldest do not; the answer has it too."""


class Header(NamedTuple):
    """In front of every other frame."""

    xid: int
    op: int


class CreateRequest(NamedTuple):
    """CREATE and CREATE2; the second is answered with a stat."""

    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    flags: int
    wants_stat: bool


class DeleteRequest(NamedTuple):
    """DELETE."""

    path: str
    version: int


class SetDataRequest(NamedTuple):
    """SET_DATA."""

    path: str
    data: bytes | None
    version: int


class CheckRequest(NamedTuple):
    """CHECK, mostly inside a multi."""

    path: str
    version: int


class SetAclRequest(NamedTuple):
    """SET_ACL."""

    path: str
    acl: tuple[Acl, ...]
    version: int


class ReadRequest(NamedTuple):
    """EXISTS, GET_DATA, GET_CHILDREN and GET_CHILDREN2."""

    op: Op
    path: str
    watch: bool


class PathRequest(NamedTuple):
    """What needs nothing but a path: GET_ACL, SYNC, GET_EPHEMERALS, GET_ALL_CHILDREN_NUMBER."""

    op: Op
    path: str


class WatchRequest(NamedTuple):
    """ADD_WATCH, REMOVE_WATCHES and CHECK_WATCHES, with a mode or a type."""

    op: Op
    path: str
    mode: int


class SetWatchesRequest(NamedTuple):
    """SET_WATCHES and SET_WATCHES2: what a client watched before it came back."""

    since: Zxid
    data: list[str]
    exists: list[str]
    children: list[str]
    persistent: list[str]
    recursive: list[str]


class MultiRequest(NamedTuple):
    """MULTI."""

    operations: "tuple[WriteRequest, ...]"


class MultiReadRequest(NamedTuple):
    """MULTI_READ."""

    operations: tuple[ReadRequest, ...]


class EmptyRequest(NamedTuple):
    """Requests without a body, or with one that is ignored."""

    op: Op


WriteRequest = CreateRequest | DeleteRequest | SetDataRequest | CheckRequest | SetAclRequest
Request = (
    WriteRequest
    | ReadRequest
    | PathRequest
    | WatchRequest
    | SetWatchesRequest
    | MultiRequest
    | MultiReadRequest
    | EmptyRequest
)

_READS: Final = (Op.EXISTS, Op.GET_DATA, Op.GET_CHILDREN, Op.GET_CHILDREN2)
_PATHS: Final = (Op.GET_ACL, Op.SYNC, Op.GET_EPHEMERALS, Op.GET_ALL_CHILDREN_NUMBER)
_WATCHES: Final = (Op.ADD_WATCH, Op.REMOVE_WATCHES, Op.CHECK_WATCHES)
_MULTI_WRITES: Final = (Op.CREATE, Op.CREATE2, Op.DELETE, Op.SET_DATA, Op.CHECK)
_MULTI_READS: Final = (Op.GET_DATA, Op.GET_CHILDREN)


def read_connect(frame: bytes) -> ConnectRequest:
    """The first frame."""
    reader = JuteReader(frame)
    if reader.integer() != 0:
        raise MalformedRequest("unknown version of the protocol")
    last_zxid_seen = Zxid(reader.long())
    timeout_ms = reader.integer()
    session_id = SessionId(reader.long())
    password = reader.buffer() or b""
    return ConnectRequest(last_zxid_seen, timeout_ms, session_id, password, reader.remaining > 0)


def read_header(reader: JuteReader) -> Header:
    return Header(reader.integer(), reader.integer())


def read_request(op: Op, reader: JuteReader) -> Request:
    """The rest of a frame after its header."""
    if op in _READS:
        return ReadRequest(op, _path(reader), reader.boolean())
    if op in _PATHS:
        return PathRequest(op, _path(reader))
    if op in _WATCHES:
        return WatchRequest(op, _path(reader), reader.integer())
    match op:
        case Op.MULTI:
            return MultiRequest(tuple(_read_multi(reader)))
        case Op.MULTI_READ:
            return MultiReadRequest(tuple(_read_multi_read(reader)))
        case Op.SET_WATCHES | Op.SET_WATCHES2:
            return _read_set_watches(op, reader)
        case Op.CREATE | Op.CREATE2 | Op.DELETE | Op.SET_DATA | Op.CHECK | Op.SET_ACL:
            return _read_write(op, reader)
        case _:
            return EmptyRequest(op)


def _read_write(op: Op, reader: JuteReader) -> WriteRequest:
    path = _path(reader)
    match op:
        case Op.DELETE:
            return DeleteRequest(path, reader.integer())
        case Op.SET_DATA:
            return SetDataRequest(path, reader.buffer(), reader.integer())
        case Op.CHECK:
            return CheckRequest(path, reader.integer())
        case Op.SET_ACL:
            return SetAclRequest(path, _read_acls(reader), reader.integer())
        case _:
            data = reader.buffer()
            acl = _read_acls(reader)
            return CreateRequest(path, data, acl, reader.integer(), op == Op.CREATE2)


def _path(reader: JuteReader) -> str:
    # kazoo sends an empty string as null; neither is a path, and its use is refused.
    return reader.text() or ""


def _read_acls(reader: JuteReader) -> tuple[Acl, ...]:
    def read_acl() -> Acl:
        return Acl(reader.integer(), reader.text() or "", reader.text() or "")

    return tuple(reader.vector(read_acl, item_bytes_min=_ACL_BYTES_MIN))


def _read_set_watches(op: Op, reader: JuteReader) -> SetWatchesRequest:
    since = Zxid(reader.long())
    data, exists, children = reader.texts(), reader.texts(), reader.texts()
    if op == Op.SET_WATCHES:
        return SetWatchesRequest(since, data, exists, children, [], [])
    return SetWatchesRequest(since, data, exists, children, reader.texts(), reader.texts())


def _next_operation(reader: JuteReader, allowed: tuple[Op, ...]) -> Op | None:
    """None at the end of a multi."""
    if reader.remaining < _MULTI_HEADER_BYTES:
        raise MalformedRequest("a multi without its end")
    number = reader.integer()
    is_last = reader.boolean()
    reader.integer()
    if is_last:
        return None
    if number not in allowed:
        raise MalformedRequest(f"operation {number} in a multi")
    return Op(number)


def _read_multi(reader: JuteReader) -> list[WriteRequest]:
    operations: list[WriteRequest] = []
    while (op := _next_operation(reader, _MULTI_WRITES)) is not None:
        operations.append(_read_write(op, reader))
    return operations


def _read_multi_read(reader: JuteReader) -> list[ReadRequest]:
    operations: list[ReadRequest] = []
    while (op := _next_operation(reader, _MULTI_READS)) is not None:
        operations.append(ReadRequest(op, _path(reader), reader.boolean()))
    return operations
