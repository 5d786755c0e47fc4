"""`/metrics`, `/health` and `/ready` over HTTP, in the broker's own loop.

Small and without a dependency: read-only, no request bodies, a bounded number of connections, each
with a bounded head and bounded times. A response is written in chunks as the peer reads it, and the
loop serves Kafka clients between two chunks. Who must leave when others come is decided in
`observe/http_places.py`.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from millstream.observe.exposition import choose_format
from millstream.observe.http_places import YOUNG_S, Use
from millstream.observe.http_request import BadRequest, Request, take_request

if TYPE_CHECKING:
    from millstream.observe.server import ObserveServer

IDLE_S: Final = 120.0
"""An open connection without a request; longer than the usual scrape interval of 15 to 60 s."""

REQUEST_S: Final = 10.0
"""For a request's head to arrive once it began, and for the peer to read each chunk."""

ANSWER_S: Final = 120.0
"""For a whole answer: no reader, however slow, keeps one longer."""

SCRAPE_WAIT_S: Final = 30.0
"""For a request for metrics to wait for those before it; scrapers give up earlier."""

REQUESTS_PER_CONNECTION_MAX: Final = 1000
"""Then it is closed with the answer, and the peer connects again: hours of an ordinary scraper."""

LINGER_S: Final = 1.0
"""For a peer to close its side after the last answer."""

REQUESTS_QUEUED_MAX: Final = 4
"""Requests read ahead while an answer is written; then reading pauses."""

_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}


class Answer(NamedTuple):
    """What to send: a short text, or a body in chunks."""

    status: int
    body: bytes | Iterator[bytes]
    content_type: str = _TEXT
    allow: str = ""


def answer_to(server: "ObserveServer", request: Request) -> Answer:
    """The response to a request."""
    if request.path not in ("/metrics", "/health", "/ready"):
        return Answer(404, b"the paths are /metrics, /health and /ready\n")
    if request.method not in ("GET", "HEAD"):
        return Answer(405, b"only GET and HEAD are supported\n", allow="GET, HEAD")
    if request.path == "/health":
        return Answer(200, b"ok\n")
    if request.path == "/ready":
        reason = server.why_not_ready()
        text = "ready" if reason is None else f"not ready: {reason}"
        return Answer(200 if reason is None else 503, f"{text}\n".encode(errors="replace"))
    text_format = choose_format(request.accept)
    return Answer(200, server.metrics.exposition(text_format), text_format.value)


def is_scrape(request: Request) -> bool:
    """Whether its answer takes long."""
    return request.path == "/metrics" and request.method == "GET"


class HttpConnection(asyncio.Protocol):
    """One connection; answers leave in the order of their requests."""

    def __init__(self, server: "ObserveServer") -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._requests: deque[Request | BadRequest] = deque()
        self._is_input_over = False
        """Nothing more is read: end of file, a bad request, or one with `Connection: close`."""
        self._has_peer_ended = False
        self._chunks: Iterator[bytes] | None = None
        """The rest of the response in progress."""
        self._is_chunked = False
        self._is_last = False
        """The connection closes after the response in progress."""
        self._is_full = False
        """The peer does not read what was written."""
        self._step: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport
        self._pending: Request | None = None
        """For metrics, which others get before it."""
        self._left = REQUESTS_PER_CONNECTION_MAX
        self.address = ""
        self.since_s = self._loop.time()
        self._is_new = True
        """No request has arrived yet."""
        self._full_since_s = 0.0
        self._waited_s = 0.0
        self._answer_until_s = 0.0

    # -- for the server

    def use(self, now_s: float) -> Use:
        """What it uses its place for."""
        is_young = now_s - self.since_s < YOUNG_S
        if self._pending is not None:
            return Use.YOUNG if is_young else Use.WAITING
        if self._chunks is not None:
            return Use.UNREAD if self._is_full else Use.ANSWERED
        if is_young and (self._is_new or self._buffer):
            return Use.YOUNG
        return Use.HEAD if self._buffer else Use.IDLE

    def reader_wait_s(self, now_s: float) -> float:
        """How long the answer in progress has waited for the reader."""
        return self._waited_s + (now_s - self._full_since_s if self._is_full else 0.0)

    def begin_scrape(self) -> None:
        """It is its turn to get metrics."""
        request, self._pending = self._pending, None
        if request is not None:
            self._begin_answer(answer_to(self._server, request), request)

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername") or ("",)
        self.address = str(name[0])
        if not self._server.admit(self):
            self._begin_answer(Answer(503, b"too many connections\n"), None)
            return
        self._expect(IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._chunks = self._pending = None
        self._server.leave(self)
        self._requests.clear()
        for handle in (self._timer, self._step):
            if handle is not None:
                handle.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_input_over:
            return
        if not self._buffer and not self._is_answering:
            self.since_s = self._loop.time()
            self._expect(REQUEST_S)
        self._buffer += data
        self._take_requests()

    def eof_received(self) -> bool:
        """The peer sends no more; it may still read, so responses in progress are finished."""
        self._has_peer_ended = True
        self._end_input()
        return self._is_answering or bool(self._requests)

    def pause_writing(self) -> None:
        self._is_full, self._full_since_s = True, self._loop.time()

    def resume_writing(self) -> None:
        self._waited_s = self.reader_wait_s(self._loop.time())
        self._is_full = False
        self._go_on_soon()

    def abort(self) -> None:
        """Close without sending what is left."""
        self._transport.abort()

    @property
    def _is_answering(self) -> bool:
        return self._chunks is not None or self._pending is not None

    # -- requests

    def _take_requests(self) -> None:
        try:
            while len(self._requests) < REQUESTS_QUEUED_MAX:
                request = take_request(self._buffer)
                if request is None:
                    break
                self._requests.append(request)
        except BadRequest as error:
            self._requests.append(error)
            self._end_input()
        # Stop reading from a peer that sends requests and does not read responses.
        if len(self._requests) >= REQUESTS_QUEUED_MAX:
            self._transport.pause_reading()
        if not self._is_answering:
            self._next_request()

    def _end_input(self) -> None:
        self._is_input_over = True
        self._buffer.clear()

    def _next_request(self) -> None:
        if not self._requests:
            if self._is_input_over:
                self._end_connection()
            elif not self._buffer:
                self.since_s = self._loop.time()
                self._expect(IDLE_S)
            return
        self._is_new = False
        request = self._requests.popleft()
        if isinstance(request, BadRequest):
            self._begin_answer(Answer(request.status, f"{request}\n".encode()), None)
        elif is_scrape(request) and not self._server.begin_scrape(self):
            self._pending, self.since_s = request, self._loop.time()
            self._expect(SCRAPE_WAIT_S)
        else:
            self._begin_answer(answer_to(self._server, request), request)

    # -- answers

    def _begin_answer(self, answer: Answer, request: Request | None) -> None:
        body = iter((answer.body,)) if isinstance(answer.body, bytes) else answer.body
        is_old = request is None or request.is_http_1_0
        self._is_chunked = not isinstance(answer.body, bytes) and not is_old
        self._left -= 1
        self._is_last = request is None or not request.keeps_open or not self._left
        self.since_s = self._loop.time()
        self._answer_until_s, self._waited_s = self.since_s + ANSWER_S, 0.0
        if not isinstance(answer.body, bytes) and is_old:
            self._is_last = True  # in HTTP/1.0 such a body ends with the connection
        if self._is_last:
            self._end_input()
            self._requests.clear()
        self._transport.write(self._head(answer))
        if request is not None and request.method == "HEAD":
            self._is_chunked = False
            body = iter(())
        self._chunks = body
        self._go_on()

    def _head(self, answer: Answer) -> bytes:
        lines = [
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
            f"Content-Type: {answer.content_type}",
            "Cache-Control: no-store",
            f"Connection: {'close' if self._is_last else 'keep-alive'}",
        ]
        if isinstance(answer.body, bytes):
            lines.append(f"Content-Length: {len(answer.body)}")
        elif self._is_chunked:
            lines.append("Transfer-Encoding: chunked")
        if answer.allow:
            lines.append(f"Allow: {answer.allow}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _go_on_soon(self) -> None:
        if self._step is None and self._chunks is not None and not self._is_full:
            self._step = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Write one chunk, then let the loop serve others."""
        self._step = None
        if self._chunks is None or self._is_full or self._transport.is_closing():
            return
        self._expect(min(REQUEST_S, self._answer_until_s - self._loop.time()))
        chunk = next(self._chunks, None)
        if chunk is None:
            self._end_answer()
            return
        if self._is_chunked and chunk:  # a chunk without bytes would be the end
            chunk = b"%x\r\n%b\r\n" % (len(chunk), chunk)
        if chunk:
            self._transport.write(chunk)
        self._go_on_soon()

    def _end_answer(self) -> None:
        if self._is_chunked:
            self._transport.write(b"0\r\n\r\n")
        self._chunks = None
        self._server.end_scrape(self)
        if self._is_last:
            self._end_connection()
            return
        self._transport.resume_reading()
        self._take_requests()

    def _end_connection(self) -> None:
        """Close our side and wait a moment for the peer to close its own.

        Closing at once while the peer still sends makes the kernel reset the connection, and the
        reset can overtake the answer.
        """
        if self in self._server.connections and not self._has_peer_ended:
            is_taken = not self._transport.get_write_buffer_size()
            try:
                self._transport.write_eof()
            except OSError:
                self.abort()  # it is gone, and the loop has yet to say so
                return
            self._transport.resume_reading()
            self._expect(LINGER_S if is_taken else REQUEST_S)
        else:
            self._transport.close()  # its timer stays: a peer that reads nothing is dropped

    # -- time

    def _expect(self, within_s: float) -> None:
        """Drop the connection unless it makes progress within this time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(within_s, self.abort)
