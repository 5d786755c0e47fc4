"""The whole state as bytes, and back; a checksum detects damage."""

from struct import Struct
from typing import Final

from millstream.coordination.keeper.changes import decode_acls
from millstream.coordination.keeper.jute import (
    JuteReader,
    MalformedRequest,
    pack_buffer,
    pack_integer,
    pack_long,
    pack_text,
)
from millstream.coordination.keeper.replies import acls_of
from millstream.coordination.keeper.state import Node, State
from millstream.kernels.crc import crc32c
from millstream.model.ids import SessionId, Zxid

_MAGIC: Final = 0x4D534B53
_VERSION: Final = 1
_NUMBERS: Final = Struct(">qqqqqiiiq")
_CRC: Final = Struct(">I")
_SESSION_BYTES: Final = 12
_NODE_BYTES_MIN: Final = 12 + _NUMBERS.size


def encode_snapshot(state: State) -> bytes:
    parts = [pack_integer(_MAGIC), pack_integer(_VERSION), pack_long(state.last_zxid)]
    parts.append(pack_integer(len(state.sessions)))
    for session_id, timeout_ms in sorted(state.sessions.items()):
        parts += [pack_long(session_id), pack_integer(timeout_ms)]
    parts.append(pack_integer(len(state.nodes)))
    for path in sorted(state.nodes):  # a parent comes before its children
        node = state.nodes[path]
        parts += [pack_text(path), pack_buffer(node.data), acls_of(node.acl), _numbers(node)]
    body = b"".join(parts)
    return body + _CRC.pack(crc32c(body))


def decode_snapshot(data: bytes) -> State:
    """Raises MalformedRequest."""
    body = data[: -_CRC.size]
    if len(data) < _CRC.size or _CRC.unpack(data[-_CRC.size :])[0] != crc32c(body):
        raise MalformedRequest("the checksum does not match")
    reader = JuteReader(body)
    if reader.integer() != _MAGIC or reader.integer() != _VERSION:
        raise MalformedRequest("not a snapshot of this version")
    state = State()
    state.last_zxid = Zxid(reader.long())
    state.sessions = dict(
        reader.vector(
            lambda: (SessionId(reader.long()), reader.integer()), item_bytes_min=_SESSION_BYTES
        )
    )
    for path, node in reader.vector(lambda: _read_node(reader), item_bytes_min=_NODE_BYTES_MIN):
        state.add_loaded(path, node)
    return state


def _numbers(node: Node) -> bytes:
    return _NUMBERS.pack(
        node.czxid,
        node.mzxid,
        node.pzxid,
        node.created_ms,
        node.modified_ms,
        node.version,
        node.acl_version,
        node.created_children,
        node.owner,
    )


def _read_node(reader: JuteReader) -> tuple[str, Node]:
    path, data, acl = reader.text(), reader.buffer(), decode_acls(reader)
    if path is None:
        raise MalformedRequest("a node without its path")
    czxid, mzxid, pzxid = Zxid(reader.long()), Zxid(reader.long()), Zxid(reader.long())
    created_ms, modified_ms = reader.long(), reader.long()
    version, acl_version, created_children = reader.integer(), reader.integer(), reader.integer()
    node = Node(
        data,
        acl,
        czxid=czxid,
        mzxid=mzxid,
        pzxid=pzxid,
        created_ms=created_ms,
        modified_ms=modified_ms,
        version=version,
        acl_version=acl_version,
        created_children=created_children,
        owner=SessionId(reader.long()),
    )
    return path, node
