"""A client's side of ZooKeeper's protocol: requests as bytes, answers as the port's values."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from millstream.coordination import errors, port
from millstream.coordination.credentials import SCHEME, Credentials
from millstream.coordination.keeper.jute import (
    JuteReader,
    pack_boolean,
    pack_buffer,
    pack_integer,
    pack_long,
    pack_text,
)
from millstream.coordination.keeper.protocol import AUTH_XID, Code, Op
from millstream.coordination.keeper.replies import acls_of
from millstream.coordination.keeper.state import OPEN_ACL
from millstream.coordination.port import Created, NodeChildren, NodeData, NodeStat
from millstream.model.ids import SessionId, Zxid

_MULTI_HEADER: Final = Struct(">iBi")
_MULTI_END: Final = _MULTI_HEADER.pack(-1, 1, -1)

_ERRORS: Final[dict[int, type[errors.RequestRefused]]] = {
    Code.NO_NODE: errors.NoNode,
    Code.NODE_EXISTS: errors.NodeExists,
    Code.BAD_VERSION: errors.BadVersion,
    Code.NOT_EMPTY: errors.NotEmpty,
    Code.NO_CHILDREN_FOR_EPHEMERALS: errors.NoChildrenForEphemerals,
    Code.BAD_ARGUMENTS: errors.BadArguments,
    Code.NO_AUTH: errors.NotAllowed,
}


def refusal(code: int, path: str) -> errors.RequestRefused:
    kind = _ERRORS.get(code)
    return kind(path) if kind is not None else errors.Unexpected(path, f"error {code}")


def frame(body: bytes) -> bytes:
    return pack_integer(len(body)) + body


def connect_frame(
    *, last_zxid: Zxid, timeout_ms: int, session_id: SessionId, password: bytes
) -> bytes:
    head = pack_integer(0) + pack_long(last_zxid) + pack_integer(timeout_ms)
    return frame(head + pack_long(session_id) + pack_buffer(password) + pack_boolean(False))


def auth_frame(credentials: Credentials) -> bytes:
    header = pack_integer(AUTH_XID) + pack_integer(Op.AUTH) + pack_integer(0)
    return frame(header + pack_text(SCHEME) + pack_text(credentials.packet()))


def create(path: str, data: bytes, kind: port.NodeKind) -> bytes:
    return pack_text(path) + pack_buffer(data) + acls_of(OPEN_ACL) + pack_integer(kind.value)


def set_data(path: str, data: bytes, version: int) -> bytes:
    return pack_text(path) + pack_buffer(data) + pack_integer(version)


def versioned(path: str, version: int) -> bytes:
    return pack_text(path) + pack_integer(version)


def watched(path: str, *, watch: bool) -> bytes:
    return pack_text(path) + pack_boolean(watch)


def multi(operations: Sequence[port.Operation]) -> bytes:
    parts = []
    for operation in operations:
        op, body = _operation(operation)
        parts.append(_MULTI_HEADER.pack(op, 0, -1) + body)
    return b"".join(parts) + _MULTI_END


def _operation(operation: port.Operation) -> tuple[Op, bytes]:
    match operation:
        case port.Create(path=path, data=data, kind=kind):
            return Op.CREATE, create(path, data, kind)
        case port.Set(path=path, data=data, version=version):
            return Op.SET_DATA, set_data(path, data, version)
        case port.Delete(path=path, version=version):
            return Op.DELETE, versioned(path, version)
        case port.Check(path=path, version=version):
            return Op.CHECK, versioned(path, version)


def read_stat(reader: JuteReader) -> NodeStat:
    return NodeStat(
        czxid=Zxid(reader.long()),
        mzxid=Zxid(reader.long()),
        created_ms=reader.long(),
        modified_ms=reader.long(),
        version=reader.integer(),
        children_version=reader.integer(),
        acl_version=reader.integer(),
        owner=SessionId(reader.long()),
        data_length=reader.integer(),
        children_count=reader.integer(),
        pzxid=Zxid(reader.long()),
    )


def read_created(reader: JuteReader) -> Created:
    return Created(reader.text() or "", read_stat(reader))


def read_data(reader: JuteReader) -> NodeData:
    return NodeData(reader.buffer() or b"", read_stat(reader))


def read_children(reader: JuteReader) -> NodeChildren:
    return NodeChildren(sorted(reader.texts()), read_stat(reader))


def read_nothing(reader: JuteReader) -> None:
    """For a response without a body."""


def read_multi(reader: JuteReader, operations: Sequence[port.Operation]) -> list[port.MultiResult]:
    """Raises MultiFailed."""
    results: list[port.MultiResult] = []
    codes: list[int] = []
    while True:
        op, is_last, _ = reader.integer(), reader.boolean(), reader.integer()
        if is_last:
            break
        match op:
            case Op.CREATE:
                results.append(reader.text())
            case Op.SET_DATA:
                results.append(read_stat(reader))
            case -1:
                codes.append(reader.integer())
            case _:
                results.append(None)
    for index, code in enumerate(codes):
        if code not in (Code.OK, Code.RUNTIME_INCONSISTENCY):
            cause = refusal(code, operations[index].path)
            raise errors.MultiFailed(index=index, cause=cause)
    return results
