"""Jute, ZooKeeper's encoding: big-endian numbers, and length-prefixed strings and vectors.

The reader bounds everything before it allocates and has one error for bad bytes.
"""

from collections.abc import Callable
from struct import Struct
from typing import Final, TypeVar

from millstream.model.errors import OperatingError

T = TypeVar("T")

_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_NULL: Final = _INT.pack(-1)


class MalformedRequest(OperatingError):
    """Bytes that are not what the protocol says."""


class JuteReader:
    """Reads one message front to back."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self._data = data
        self._position = position

    @property
    def remaining(self) -> int:
        return len(self._data) - self._position

    def _take(self, size: int) -> int:
        """The position before `size` bytes that are there."""
        position = self._position
        if not 0 <= size <= len(self._data) - position:
            raise MalformedRequest(f"{size} bytes wanted at {position}, {self.remaining} left")
        self._position = position + size
        return position

    def integer(self) -> int:
        return int(_INT.unpack_from(self._data, self._take(4))[0])

    def long(self) -> int:
        return int(_LONG.unpack_from(self._data, self._take(8))[0])

    def boolean(self) -> bool:
        return self._data[self._take(1)] != 0

    def buffer(self) -> bytes | None:
        size = self.integer()
        if size == -1:
            return None
        position = self._take(size)
        return bytes(self._data[position : position + size])

    def text(self) -> str | None:
        data = self.buffer()
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"not UTF-8: {error}") from error

    def vector(self, read_item: Callable[[], T], *, item_bytes_min: int) -> list[T]:
        """Null is read as empty, as in ZooKeeper."""
        count = self.integer()
        if count == -1:
            return []
        if not 0 <= count <= self.remaining // item_bytes_min:
            raise MalformedRequest(f"vector of {count} items in {self.remaining} bytes")
        return [read_item() for _ in range(count)]

    def texts(self) -> list[str]:
        return [text or "" for text in self.vector(self.text, item_bytes_min=4)]


def pack_integer(value: int) -> bytes:
    return _INT.pack(value)


def pack_long(value: int) -> bytes:
    return _LONG.pack(value)


def pack_boolean(value: bool) -> bytes:  # noqa: FBT001 - one value is what it is about
    return b"\x01" if value else b"\x00"


def pack_buffer(data: bytes | None) -> bytes:
    return _NULL if data is None else _INT.pack(len(data)) + data


def pack_text(text: str | None) -> bytes:
    return _NULL if text is None else pack_buffer(text.encode())


def pack_texts(texts: list[str]) -> bytes:
    return _INT.pack(len(texts)) + b"".join(map(pack_text, texts))
