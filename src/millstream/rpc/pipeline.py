"""The state of one connection without I/O: frames out, frames in, and requests in flight.

Kafka answers the requests of a connection in their order. So a response belongs to the oldest
request in flight, and its correlation id proves it; anything else is a violation.

Responses are views of a buffer that is not written while there is a view of it, so their owners may
keep them. A buffer grows with the bytes received, not with the size that a peer claims.
"""

import sys
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Final, Generic, NamedTuple, TypeVar

from millstream.model.invariant import invariant
from millstream.rpc.errors import PeerViolation
from millstream.wire.api_keys import ApiKey
from millstream.wire.headers import decode_response_header, encode_request_header
from millstream.wire.primitives import MalformedFrame

T = TypeVar("T")

Bytes = bytes | bytearray | memoryview

BUFFER_BYTES: Final = 64 * 1024
"""A new buffer: many small responses, or the first part of a large one."""

_READ_BYTES_MIN: Final = 4 * 1024
"""With less room than this, a new buffer is better than a small read."""

_GROWTH: Final = 4
"""A third of a large response is copied while it is read, and its buffer has at most four times
the bytes received."""

KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Buffers of large responses that are reused when there is no view of them: new memory costs more,
in page faults and zeroing, than reading into it. `trim` frees them."""

_KEPT_STEP_BYTES: Final = 256 * 1024
"""Their sizes are rounded up to it, so that responses of similar size can reuse them."""

_UNUSED_REFERENCES: Final = 3
"""To a kept buffer without views: of the deque, of the loop, and of the `getrefcount` call."""

_SIZE: Final = Struct(">i")
_CORRELATION_IDS: Final = 2**31


class InFlight(NamedTuple, Generic[T]):
    """A request that waits for its response."""

    correlation_id: int
    key: ApiKey
    version: int
    deadline_s: float
    owner: T
    """Receives the outcome."""


class Response(NamedTuple, Generic[T]):
    """A response with its request."""

    request: InFlight[T]
    body: memoryview
    """Without frame and header; valid as long as it is held."""


class Pipeline(Generic[T]):
    """One connection's requests and bytes."""

    def __init__(self, *, client_id: str | None, response_bytes_max: int) -> None:
        self._client_id = client_id
        self.response_bytes_max = response_bytes_max
        self._next_correlation_id = 0
        self._waiting: deque[InFlight[T]] = deque()
        self._buffer = memoryview(b"")
        self._start = 0
        self._end = 0
        self._kept: deque[bytearray] = deque()
        self._kept_bytes = 0

    # -- out

    @property
    def in_flight(self) -> int:
        """Requests that wait for a response."""
        return len(self._waiting)

    def begin(
        self, key: ApiKey, version: int, body: Sequence[Bytes], *, deadline_s: float, owner: T
    ) -> list[Bytes]:
        """The frame of a request, in parts to be written now; its response will be expected."""
        correlation_id, parts = self._frame(key, version, body)
        self._waiting.append(InFlight(correlation_id, key, version, deadline_s, owner))
        return parts

    def begin_without_response(
        self, key: ApiKey, version: int, body: Sequence[Bytes]
    ) -> list[Bytes]:
        """The frame of a request without a response (Produce with acks=0)."""
        return self._frame(key, version, body)[1]

    def _frame(self, key: ApiKey, version: int, body: Sequence[Bytes]) -> tuple[int, list[Bytes]]:
        correlation_id = self._next_correlation_id
        header = encode_request_header(key, version, correlation_id, self._client_id)
        size = len(header) + sum(map(_byte_count, body))
        if size >= 2**31:
            raise ValueError(f"{key.name} of {size} bytes is larger than a frame can be")
        self._next_correlation_id = (correlation_id + 1) % _CORRELATION_IDS
        return correlation_id, [_SIZE.pack(size) + header, *body]

    # -- in

    def writable(self) -> memoryview:
        """Where the next bytes from the peer go; never empty."""
        if self._end == self._start >= BUFFER_BYTES:
            self._reset_buffer()
        if len(self._buffer) - self._end < self._required_room():
            self._renew_buffer()
        return self._buffer[self._end :]

    def received(self, size: int) -> None:
        """So many bytes were written into `writable()`."""
        invariant(size <= len(self._buffer) - self._end, "more bytes than room", size=size)
        self._end += size

    def next_response(self) -> Response[T] | None:
        """The next complete response; None until more bytes are received. Raises PeerViolation."""
        size = self._frame_size()
        if size is None or self._end - self._start < 4 + size:
            return None
        frame = self._buffer[self._start + 4 : self._start + 4 + size].toreadonly()
        self._start += 4 + size
        if not self._waiting:
            raise PeerViolation("a response without a request")
        request = self._waiting.popleft()
        try:
            correlation_id, position = decode_response_header(frame, request.key, request.version)
        except MalformedFrame as error:
            self._waiting.appendleft(request)
            raise PeerViolation(f"malformed response header: {error}") from None
        if correlation_id != request.correlation_id:
            self._waiting.appendleft(request)
            expected = request.correlation_id
            raise PeerViolation(f"correlation id {correlation_id}, expected {expected}")
        return Response(request, frame[position:])

    def _frame_size(self) -> int | None:
        """Size of the first frame in the buffer, checked; None while it is unknown."""
        if self._end - self._start < 4:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        if not 4 <= size <= self.response_bytes_max:
            raise PeerViolation(
                f"frame of {size} bytes; at least 4 and at most {self.response_bytes_max}"
            )
        return int(size)

    def _required_room(self) -> int:
        """Bytes that should fit behind the received ones."""
        have = self._end - self._start
        size = self._frame_size() if have >= 4 else None
        if size is None or 4 + size <= have:
            return _READ_BYTES_MIN
        return min(4 + size - have, max(_READ_BYTES_MIN, BUFFER_BYTES // 2))

    def _reset_buffer(self) -> None:
        """After a large response the next is likely to be large too: use a kept buffer at once."""
        self._buffer, self._start, self._end = memoryview(b""), 0, 0
        kept = self._unused(BUFFER_BYTES)
        if kept is not None:
            self._buffer = memoryview(kept)

    def _renew_buffer(self) -> None:
        """Switch to another buffer that starts with the received part of the frame."""
        have = self._end - self._start
        size = self._frame_size() if have >= 4 else None
        fresh = memoryview(self._buffer_for(size, have))
        fresh[:have] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = fresh, 0, have

    def _buffer_for(self, size: int | None, have: int) -> bytearray:
        if size is None:
            return bytearray(BUFFER_BYTES)
        # Room behind the frame for the size of the next one, so that both are read together.
        needed = 4 + size + 4
        if needed <= BUFFER_BYTES:
            return bytearray(BUFFER_BYTES)
        kept = self._unused(needed)
        if kept is not None:
            return kept
        if needed > _GROWTH * have:
            return bytearray(max(BUFFER_BYTES, _GROWTH * have))
        fresh = bytearray(-(-needed // _KEPT_STEP_BYTES) * _KEPT_STEP_BYTES)
        self._keep(fresh)
        return fresh

    # -- reused buffers

    def _keep(self, buffer: bytearray) -> None:
        self._kept.append(buffer)
        self._kept_bytes += len(buffer)
        while self._kept_bytes > KEPT_BYTES_MAX:
            self._kept_bytes -= len(self._kept.popleft())

    def _unused(self, size_min: int) -> bytearray | None:
        """A kept buffer of at least that size without views."""
        for kept in self._kept:
            if len(kept) >= size_min and sys.getrefcount(kept) <= _UNUSED_REFERENCES:
                return kept
        return None

    def trim(self) -> None:
        """Free the kept buffers."""
        self._kept.clear()
        self._kept_bytes = 0

    # -- time and end

    def next_deadline_s(self) -> float:
        """The earliest deadline of the requests in flight."""
        return min((one.deadline_s for one in self._waiting), default=float("inf"))

    def abandon(self) -> list[InFlight[T]]:
        """The connection is closed: clear the state, return the requests in flight in order."""
        left = list(self._waiting)
        self._waiting.clear()
        self._buffer, self._start, self._end = memoryview(b""), 0, 0
        self.trim()
        return left


def _byte_count(part: Bytes) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)
