"""Answers and events as bytes for the wire, each with its length in front."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from millstream.coordination.keeper.jute import (
    pack_boolean,
    pack_buffer,
    pack_integer,
    pack_long,
    pack_text,
)
from millstream.coordination.keeper.protocol import (
    PASSWORD_BYTES,
    SYNC_CONNECTED,
    WATCH_XID,
    Code,
    Event,
    Op,
)
from millstream.coordination.keeper.requests import Acl
from millstream.coordination.port import NodeStat
from millstream.model.ids import NO_SESSION, SessionId, Zxid

_LENGTH: Final = Struct(">i")
_FRAME_HEADER: Final = Struct(">iiqi")
_HEADER_BYTES: Final = 16
_STAT: Final = Struct(">qqqqiiiqiiq")
_MULTI_HEADER: Final = Struct(">iBi")
_MULTI_END: Final = _MULTI_HEADER.pack(-1, 1, -1)
_ERROR: Final = -1

MultiResult = tuple[Op, bytes] | Code
"""What one operation gave: its kind and body, or why not."""


def connected(
    session_id: SessionId, *, timeout_ms: int, password: bytes, with_read_only: bool
) -> bytes:
    body = pack_integer(0) + pack_integer(timeout_ms) + pack_long(session_id)
    body += pack_buffer(password) + (pack_boolean(False) if with_read_only else b"")
    return _LENGTH.pack(len(body)) + body


def session_gone(*, with_read_only: bool) -> bytes:
    """No time-out: the client knows by this that its session expired."""
    nothing = bytes(PASSWORD_BYTES)
    return connected(NO_SESSION, timeout_ms=0, password=nothing, with_read_only=with_read_only)


def reply(xid: int, zxid: Zxid, code: Code = Code.OK, body: bytes = b"") -> bytes:
    return _FRAME_HEADER.pack(_HEADER_BYTES + len(body), xid, zxid, code) + body


def event(kind: Event, path: str, zxid: Zxid) -> bytes:
    body = pack_integer(kind) + pack_integer(SYNC_CONNECTED) + pack_text(path)
    return reply(WATCH_XID, zxid, Code.OK, body)


def stat(of: NodeStat) -> bytes:
    return _STAT.pack(*of)


def data_and_stat(data: bytes | None, of: NodeStat) -> bytes:
    return pack_buffer(data) + stat(of)


def acls_and_stat(acls: Sequence[Acl], of: NodeStat) -> bytes:
    return acls_of(acls) + stat(of)


def acls_of(acls: Sequence[Acl]) -> bytes:
    entries = [
        pack_integer(one.permissions) + pack_text(one.scheme) + pack_text(one.identity)
        for one in acls
    ]
    return pack_integer(len(entries)) + b"".join(entries)


def multi(results: Sequence[MultiResult]) -> bytes:
    parts = []
    for result in results:
        if isinstance(result, Code):
            parts.append(_MULTI_HEADER.pack(_ERROR, 0, result) + pack_integer(result))
        else:
            parts.append(_MULTI_HEADER.pack(result[0], 0, 0) + result[1])
    return b"".join(parts) + _MULTI_END


def who_am_i(identities: Sequence[tuple[str, str]]) -> bytes:
    """Schemes, and names without what proves them."""
    entries = [pack_text(scheme) + pack_text(name.partition(":")[0]) for scheme, name in identities]
    return pack_integer(len(entries)) + b"".join(entries)
