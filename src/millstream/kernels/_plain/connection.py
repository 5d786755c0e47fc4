"""One client's connection without I/O: frames in, answers out in order; see `connection.pyi`.

Written apart from the compiled twin, so that an error in one shows against the other.
"""

from __future__ import annotations

from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from millstream.kernels._plain import produce
from millstream.kernels._plain.staging import Staged
from millstream.kernels.errors import FrameError
from millstream.kernels.request_headers import FLEXIBLE_FROM
from millstream.kernels.request_layout import (
    CLIENT_ID_AT,
    FRAME_SIZE_BYTES,
    HEADER_TAGS_MAX,
    NULL_SIZE,
    PRODUCE_KEY,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.kernels._plain.produce import CheckedProduce
    from millstream.kernels._plain.slots import SlotTable

__all__ = ["Connection", "FrameError"]

_BUFFER_BYTES: Final = 32_768
_ROOM_BYTES_MIN: Final = 4_096
_MERGED_BYTES_MAX: Final = 8_192
_TOGETHER_BYTES_MAX: Final = 65_536

_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">hhih")  # api key, version, correlation id, length of the client id


class Connection:
    """See the stub."""

    def __init__(
        self,
        table: SlotTable,
        *,
        frame_bytes_max: int,
        in_flight_max: int,
        output_bytes_max: int = 1_048_576,
    ) -> None:
        self.owner: Any = None
        self.allows_fast_path = True
        self.is_direct = False
        self.last_active_s = 0.0
        self.unsent_bytes = 0
        self.is_for_python = False  # the next frame was checked already: it takes the slow path
        self._table = table
        self._frame_bytes_max = frame_bytes_max
        self._in_flight_max = in_flight_max
        self._output_bytes_max = output_bytes_max
        self._buffer = bytearray()
        self._start = self._end = 0  # what was received and not yet walked is [start, end)
        self._is_closed = False
        self._numbered = 0
        self._answers: deque[Sequence[Any] | None] = deque()
        """Of the requests in flight, the oldest first; None where there is no answer yet."""
        self._late_bytes = 0  # of answers that wait for earlier ones
        self._output: list[Any] = []
        self._output_bytes = 0
        self._merged = bytearray()
        """The last part of the output, while it is ours to add to."""

    # -- input -----------------------------------------------------------------------------

    def get_buffer(self, size_hint: int) -> memoryview:  # noqa: ARG002
        if len(self._buffer) - self._end < _ROOM_BYTES_MIN:
            # Always a new one: there may be views of the old one.
            left = self._buffer[self._start : self._end]
            wanted = len(left) + _ROOM_BYTES_MIN
            if len(left) >= FRAME_SIZE_BYTES:
                claimed = FRAME_SIZE_BYTES + _SIZE.unpack_from(left)[0]
                wanted = max(wanted, min(2 * len(left), claimed))
            self._buffer = left + bytearray(max(_BUFFER_BYTES, wanted) - len(left))
            self._start, self._end = 0, len(left)
        return memoryview(self._buffer)[self._end :]

    def received(self, size: int) -> None:
        if not 0 <= size <= len(self._buffer) - self._end:
            raise ValueError(f"{size} bytes in a buffer of {len(self._buffer) - self._end}")
        self._end += size

    def trim(self) -> None:
        if self._start == self._end:
            self._buffer, self._start, self._end = bytearray(), 0, 0

    @property
    def buffer_bytes(self) -> int:
        return len(self._buffer)

    resident_bytes = buffer_bytes  # each is copied as a whole

    @property
    def unread_bytes(self) -> int:
        return self._end - self._start

    @property
    def has_request(self) -> bool:
        return self.is_for_python

    def next_request(
        self, wall_ms: int
    ) -> tuple[int, int, int, int, bytes | None, memoryview] | None:
        frame = self._next_frame() if self.walk(wall_ms) else None
        if frame is None:
            return None
        self.is_for_python = False
        api_key, version, correlation_id, client_id, at = _read_header(frame)
        return self._begin(frame), api_key, version, correlation_id, client_id, frame[at:]

    def walk(self, wall_ms: int) -> bool:
        """Stage what the fast path takes; whether the next frame is complete and for Python."""
        while not self.is_blocked and not self._is_closed:
            frame = self._next_frame()
            if frame is None:
                return False
            if self.is_for_python:
                return True
            api_key, version, correlation_id, _, at = _read_header(frame)
            checked = None
            if api_key == PRODUCE_KEY and version in produce.VERSIONS and self.allows_fast_path:
                checked = produce.check(self._table, frame[at:], version, wall_ms)
            if checked is None:
                self.is_for_python = True
                return True
            self._table.produce_bytes_in += FRAME_SIZE_BYTES + len(frame)
            self._stage(checked, frame[at:], (self._begin(frame), correlation_id, version, wall_ms))
        return False

    def _begin(self, frame: memoryview) -> int:
        """Pass the frame; the request's number."""
        self._start += FRAME_SIZE_BYTES + len(frame)
        self._answers.append(None)
        self._numbered += 1
        return self._numbered - 1

    def _next_frame(self) -> memoryview | None:
        if self.unread_bytes < FRAME_SIZE_BYTES:
            return None
        (size,) = _SIZE.unpack_from(self._buffer, self._start)
        if size < 0:
            raise FrameError(f"a frame of {size} bytes")
        if size > self._frame_bytes_max:
            raise FrameError(f"a frame of {size} bytes, the limit is {self._frame_bytes_max}")
        if self.unread_bytes - FRAME_SIZE_BYTES < size:
            return None
        start = self._start + FRAME_SIZE_BYTES
        return memoryview(self._buffer)[start : start + size]

    def _stage(
        self, checked: CheckedProduce, body: memoryview, facts: tuple[int, int, int, int]
    ) -> None:
        number, correlation_id, version, wall_ms = facts
        staged = Staged(self, number, checked.acks, wall_ms + checked.timeout_ms)
        topics, slots = [], []
        for name, batches in checked.topics:
            answers = []
            for index, batch in batches:
                base_offset = batch.slot.stage(batch, body[batch.start : batch.stop])
                answers.append((index, base_offset, batch.slot.log_start))
                slots.append((batch.slot, batch.slot.staged_end))
            topics.append((name, answers))
        errors_at = [0] * len(slots)
        if checked.acks:
            staged.answer, errors_at = produce.encode_answer(correlation_id, version, topics)
            self._table.produce_bytes_out += len(staged.answer)
        staged.partitions = [
            (slot, at, end) for (slot, end), at in zip(slots, errors_at, strict=True)
        ]
        self._table.stage(staged)

    # -- output ----------------------------------------------------------------------------

    def answer(self, number: int, parts: Sequence[Any]) -> None:
        if self._is_closed:
            return
        index = number - (self._numbered - len(self._answers))
        if not 0 <= index < len(self._answers) or self._answers[index] is not None:
            what = f"I-36 request {number} was answered already, or never made"
            raise self._table.violation(what)
        self._answers[index] = parts
        self._late_bytes += sum(map(_size_of, parts))
        while self._answers and self._answers[0] is not None:
            for part in self._answers.popleft() or ():
                self._late_bytes -= _size_of(part)
                self._send(part)
        if not index:
            self._table.note_ready(self)

    def answer_nothing(self, number: int) -> None:
        self.answer(number, ())

    def release(self, number: int, answer: bytearray) -> None:  # of a staged request
        self.answer(number, (answer,) if answer else ())

    def _send(self, part: Any) -> None:
        if not isinstance(part, bytes | bytearray | memoryview):
            self._output_bytes += part.size_bytes
            self._output.append(part)
            return
        self._output_bytes += len(part)
        last = self._output[-1] if self._output else None
        if len(part) > _MERGED_BYTES_MAX:
            self._output.append(part)
        elif last is self._merged and len(self._merged) + len(part) <= _TOGETHER_BYTES_MAX:
            self._merged += part
        elif len(part):
            self._merged = bytearray(part)
            self._output.append(self._merged)

    def take_output(self) -> list[Any]:
        output, self._output, self._output_bytes = self._output, [], 0
        return output

    def take_back(self, unsent: list[Any]) -> None:
        """All the output there was, or the rest of it: it could not be sent."""
        self._output = unsent
        self._output_bytes += sum(map(_size_of, unsent))

    def drop_output(self) -> list[Any]:
        self._is_closed = True
        self._buffer, self._start, self._end = bytearray(), 0, 0
        waiting = [part for parts in self._answers for part in parts or ()]
        self._answers.clear()
        self._late_bytes = 0
        return self.take_output() + waiting

    @property
    def output_bytes(self) -> int:
        return self._output_bytes

    @property
    def late_bytes(self) -> int:
        late = [part for parts in self._answers for part in parts or ()]
        return sum(_size_of(part) for part in late if not hasattr(part, "size_bytes"))

    @property
    def in_flight(self) -> int:
        return len(self._answers)

    @property
    def is_blocked(self) -> bool:
        output = self._output_bytes + self._late_bytes + self.unsent_bytes
        is_full = output >= self._output_bytes_max or self.in_flight >= self._in_flight_max
        return is_full and not self._is_closed


def _size_of(part: Any) -> int:
    is_bytes = isinstance(part, bytes | bytearray | memoryview)
    return len(part) if is_bytes else part.size_bytes


def _read_header(frame: memoryview) -> tuple[int, int, int, bytes | None, int]:
    """API key, version, correlation id, client id, and where the body begins."""
    if len(frame) < CLIENT_ID_AT:
        raise FrameError(f"a frame of {len(frame)} bytes has no request header")
    api_key, version, correlation_id, size = _HEADER.unpack_from(frame)
    at = CLIENT_ID_AT
    if size < NULL_SIZE or size > len(frame) - at:
        raise FrameError(f"a client id of {size} bytes")
    client_id = None if size < 0 else bytes(frame[at : at + size])
    at += max(size, 0)
    flexible_from = FLEXIBLE_FROM[api_key] if 0 <= api_key < len(FLEXIBLE_FROM) else 0
    if version >= flexible_from and api_key >= 0:
        at = _skip_tags(frame, at)
    return api_key, version, correlation_id, client_id, at


def _skip_tags(frame: memoryview, at: int) -> int:
    count, at = _varint(frame, at)
    if count > HEADER_TAGS_MAX:
        raise FrameError(f"{count} tagged fields in the request header")
    for _ in range(count):
        _, at = _varint(frame, at)
        size, at = _varint(frame, at)
        if size > len(frame) - at:
            raise FrameError(f"a tagged field of {size} bytes in the request header")
        at += size
    return at


def _varint(frame: memoryview, at: int) -> tuple[int, int]:
    number = 0
    for index in range(5):
        if at + index >= len(frame):
            break
        number |= (frame[at + index] & 0x7F) << (7 * index)
        if frame[at + index] < 0x80:
            return number & 0xFFFFFFFF, at + index + 1
    raise FrameError("a tagged field of the request header is cut off")
