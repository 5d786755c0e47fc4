"""Parses HTTP/1.1 requests, as far as a scraper needs it; pure, bytes in, requests out.

Strict on purpose: a request with a body, folded headers or bare newlines is refused and its
connection closed, so that no proxy in front could parse it differently.
"""

import re
from typing import Final, NamedTuple

HEAD_BYTES_MAX: Final = 8192
"""Prometheus sends some hundred bytes."""

HEADERS_MAX: Final = 64

_END: Final = b"\r\n\r\n"
_REQUEST_LINE: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([!-~]+) HTTP/(\d)\.(\d)")
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*)")


class BadRequest(Exception):
    """Bytes that are no acceptable request; has the status to answer with before closing."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class Request(NamedTuple):
    """A request without a body."""

    method: str
    path: str
    """Without the query."""
    accept: str
    keeps_open: bool
    is_http_1_0: bool


def take_request(buffer: bytearray) -> Request | None:
    """Remove the first whole request from the buffer; None when there is none yet.

    Raises BadRequest as soon as the bytes cannot become a request.
    """
    if buffer and not buffer[0:1].isalpha():
        raise BadRequest(400, "not HTTP")
    end = buffer.find(_END, 0, HEAD_BYTES_MAX)
    if end < 0:
        if len(buffer) >= HEAD_BYTES_MAX:
            raise BadRequest(431, "the request's head is too large")
        return None
    head = bytes(buffer[:end])
    del buffer[: end + len(_END)]
    return _parse(head)


def _parse(head: bytes) -> Request:
    first, *lines = head.split(b"\r\n")
    matched = _REQUEST_LINE.fullmatch(first)
    if matched is None:
        raise BadRequest(400, "bad request line")
    method, target, major, minor = matched.groups()
    if major != b"1":
        raise BadRequest(505, "only HTTP/1 is supported")
    if len(lines) > HEADERS_MAX:
        raise BadRequest(431, "too many headers")
    headers = _headers(lines)
    is_http_1_0 = minor == b"0"
    if not is_http_1_0 and "host" not in headers:
        raise BadRequest(400, "no Host header")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise BadRequest(413, "request bodies are not supported")
    options = [one.strip() for one in headers.get("connection", "").lower().split(",")]
    return Request(
        method=method.decode(),
        path=_path(target.decode()),
        accept=headers.get("accept", ""),
        keeps_open=("keep-alive" in options) if is_http_1_0 else ("close" not in options),
        is_http_1_0=is_http_1_0,
    )


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        matched = _HEADER.fullmatch(line)
        if matched is None:
            raise BadRequest(400, "bad header")
        name, value = matched[1].decode().lower(), matched[2].decode("latin-1").rstrip(" \t")
        if name in headers and name in ("host", "content-length", "transfer-encoding"):
            raise BadRequest(400, f"{name} twice")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return headers


def _path(target: str) -> str:
    """The path of a target, which may be absolute (`http://host/path`) when it came by a proxy."""
    scheme, separator, rest = target.partition("://")
    if separator and scheme.lower() in ("http", "https"):
        target = "/" + rest.partition("/")[2]
    return target.partition("?")[0].partition("#")[0]
