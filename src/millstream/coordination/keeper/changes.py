"""What changes the server's state, as values and as bytes for the log.

A change has been checked already: the path of a sequential node has its digits, and versions were
compared. Applied to the same state it always gives the same state, which is all that a restart
relies on.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from millstream.coordination.keeper.jute import (
    JuteReader,
    MalformedRequest,
    pack_boolean,
    pack_buffer,
    pack_integer,
    pack_long,
    pack_text,
)
from millstream.coordination.keeper.replies import acls_of
from millstream.coordination.keeper.requests import Acl
from millstream.model.ids import SessionId, Zxid

_CHANGE_BYTES_MIN: Final = 4
_ACL_BYTES_MIN: Final = 12


class CreateNode(NamedTuple):
    """A new node."""

    path: str
    data: bytes | None
    acl: tuple[Acl, ...]
    is_ephemeral: bool


class DeleteNode(NamedTuple):
    """A node without children goes."""

    path: str


class SetNode(NamedTuple):
    """New data for a node."""

    path: str
    data: bytes | None


class SetNodeAcl(NamedTuple):
    """A new access list for a node."""

    path: str
    acl: tuple[Acl, ...]


class OpenSession(NamedTuple):
    """A new session."""

    timeout_ms: int


class CloseSession(NamedTuple):
    """A session ends, and its ephemeral nodes with it."""


Change = CreateNode | DeleteNode | SetNode | SetNodeAcl | OpenSession | CloseSession


class Txn(NamedTuple):
    """Changes that are made together or not at all."""

    zxid: Zxid
    time_ms: int
    session_id: SessionId
    changes: tuple[Change, ...]


class _Kind(IntEnum):
    """Numbers in the log; never change one."""

    CREATE = 1
    DELETE = 2
    SET = 3
    SET_ACL = 4
    OPEN_SESSION = 5
    CLOSE_SESSION = 6


def encode_txn(txn: Txn) -> bytes:
    head = pack_long(txn.zxid) + pack_long(txn.time_ms) + pack_long(txn.session_id)
    return head + pack_integer(len(txn.changes)) + b"".join(map(_encode, txn.changes))


def _encode(change: Change) -> bytes:
    match change:
        case CreateNode(path, data, acl, is_ephemeral):
            body = pack_text(path) + pack_buffer(data) + acls_of(acl) + pack_boolean(is_ephemeral)
            return pack_integer(_Kind.CREATE) + body
        case DeleteNode(path):
            return pack_integer(_Kind.DELETE) + pack_text(path)
        case SetNode(path, data):
            return pack_integer(_Kind.SET) + pack_text(path) + pack_buffer(data)
        case SetNodeAcl(path, acl):
            return pack_integer(_Kind.SET_ACL) + pack_text(path) + acls_of(acl)
        case OpenSession(timeout_ms):
            return pack_integer(_Kind.OPEN_SESSION) + pack_integer(timeout_ms)
        case CloseSession():
            return pack_integer(_Kind.CLOSE_SESSION)


def decode_txn(reader: JuteReader) -> Txn:
    """Raises MalformedRequest."""
    zxid, time_ms = Zxid(reader.long()), reader.long()
    session_id = SessionId(reader.long())
    changes = reader.vector(lambda: _decode(reader), item_bytes_min=_CHANGE_BYTES_MIN)
    return Txn(zxid, time_ms, session_id, tuple(changes))


def _decode(reader: JuteReader) -> Change:
    kind = reader.integer()
    if kind == _Kind.OPEN_SESSION:
        return OpenSession(reader.integer())
    if kind == _Kind.CLOSE_SESSION:
        return CloseSession()
    path = reader.text()
    if path is None:
        raise MalformedRequest("a change without its path")
    match kind:
        case _Kind.CREATE:
            return CreateNode(path, reader.buffer(), decode_acls(reader), reader.boolean())
        case _Kind.DELETE:
            return DeleteNode(path)
        case _Kind.SET:
            return SetNode(path, reader.buffer())
        case _Kind.SET_ACL:
            return SetNodeAcl(path, decode_acls(reader))
        case _:
            raise MalformedRequest(f"a change of kind {kind}")


def decode_acls(reader: JuteReader) -> tuple[Acl, ...]:
    def read_acl() -> Acl:
        return Acl(reader.integer(), reader.text() or "", reader.text() or "")

    return tuple(reader.vector(read_acl, item_bytes_min=_ACL_BYTES_MIN))
