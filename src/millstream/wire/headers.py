"""Request and response headers.

A flexible request has tagged fields at the end of its header (version 2), and so has its response
(version 1), except that of ApiVersions: a client must be able to read it before it knows the
broker's version. The client id keeps its non-compact encoding in all versions. Tagged fields of
headers are skipped, and limited in number: none is defined.
"""

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from millstream.model.limits import HEADER_TAGS_MAX
from millstream.wire.api_keys import APIS, ApiKey
from millstream.wire.primitives import (
    Bytes,
    MalformedFrame,
    read_nullable_string,
    write_nullable_string,
)
from millstream.wire.values import read_tag, read_tag_count

_REQUEST: Final = Struct(">hhi")
_CORRELATION_ID: Final = Struct(">i")
_NO_TAGS: Final = b"\0"


class RequestHeader(NamedTuple):
    """The header of a request."""

    api_key: ApiKey
    api_version: int
    """As sent: it may be an unknown version."""
    correlation_id: int
    client_id: str | None


def is_flexible(key: ApiKey, version: int) -> bool:
    """Whether a version, known or newer, has compact lengths and tagged fields."""
    flexible_from = APIS[key].flexible_from
    return flexible_from is not None and version >= flexible_from


def request_header_version(key: ApiKey, version: int) -> int:
    return 2 if is_flexible(key, version) else 1


def response_header_version(key: ApiKey, version: int) -> int:
    return 1 if key is not ApiKey.API_VERSIONS and is_flexible(key, version) else 0


def decode_request_header(data: Bytes) -> tuple[RequestHeader, int]:
    """The header, and where the body starts. A key outside our catalogue is malformed: without it
    the length of the header is unknown.
    """
    view = memoryview(data)
    if len(view) < _REQUEST.size:
        raise MalformedFrame(f"request header in {len(view)} bytes")
    number, version, correlation_id = _REQUEST.unpack_from(view)
    key = _KEYS.get(number)
    if key is None:
        raise MalformedFrame(f"unknown API key {number}")
    client_id, at = read_nullable_string(view, _REQUEST.size)
    if is_flexible(key, version):
        at = _skip_tags(view, at)
    return RequestHeader(key, version, correlation_id, client_id), at


def encode_request_header(
    key: ApiKey, version: int, correlation_id: int, client_id: str | None
) -> bytes:
    out = bytearray(_REQUEST.pack(key, version, correlation_id))
    write_nullable_string(out, client_id)
    if is_flexible(key, version):
        out += _NO_TAGS
    return bytes(out)


def decode_response_header(data: Bytes, key: ApiKey, version: int) -> tuple[int, int]:
    """The correlation id, and where the body starts."""
    view = memoryview(data)
    if len(view) < _CORRELATION_ID.size:
        raise MalformedFrame(f"response header in {len(view)} bytes")
    (correlation_id,) = _CORRELATION_ID.unpack_from(view)
    if response_header_version(key, version) == 0:
        return correlation_id, _CORRELATION_ID.size
    return correlation_id, _skip_tags(view, _CORRELATION_ID.size)


def encode_response_header(key: ApiKey, version: int, correlation_id: int) -> bytes:
    return _CORRELATION_ID.pack(correlation_id) + response_header_end(key, version)


@lru_cache(maxsize=1024)
def response_header_end(key: int, version: int) -> bytes:
    """What follows the correlation id in a response header. Called for every response."""
    return _NO_TAGS if response_header_version(ApiKey(key), version) else b""


def _skip_tags(view: memoryview, at: int) -> int:
    count, at = read_tag_count(view, at)
    if count > HEADER_TAGS_MAX:
        raise MalformedFrame(f"{count} tagged fields in a header", at=at)
    previous = -1
    for _ in range(count):
        previous, _, at = read_tag(view, at, previous)
    return at


_KEYS: Final = {int(key): key for key in APIS}
