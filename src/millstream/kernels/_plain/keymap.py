"""Newest offset per key, for compaction; described by `keymap.pyi`.

A dictionary over BLAKE2b digests: another table and another keyed hash than the compiled twin's
on purpose, because everything that shows through the interface must be the same with both.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from millstream.kernels.batch_layout import (
    KEY_BYTES,
    KEY_START,
    OFFSET_DELTA,
    SPAN_FIELDS,
    VALUE_BYTES,
)
from millstream.kernels.outcomes import NEWEST, NEWEST_TOMBSTONE, OUTDATED, WITHOUT_KEY

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator

    from typing_extensions import Buffer

__all__ = ["ENTRY_BYTES", "KeyMap"]

ENTRY_BYTES: Final = 24

_HASH_KEY_BYTES: Final = 16
_DIGEST_BYTES: Final = 16
_INT64_MAX: Final = 2**63 - 1
_INT32_MAX: Final = 2**31 - 1


class KeyMap:
    """Counts `ENTRY_BYTES` a key against `memory_bytes`, though a dictionary takes more."""

    def __init__(self, memory_bytes: int, hash_key: bytes) -> None:
        if len(hash_key) != _HASH_KEY_BYTES:
            raise ValueError(f"hash key of {len(hash_key)} bytes, {_HASH_KEY_BYTES} are needed")
        self._capacity = memory_bytes // ENTRY_BYTES * 9 // 10
        if self._capacity < 1:
            raise ValueError(f"{memory_bytes} bytes hold no entry")
        self._hash_key = hash_key
        self._offsets: dict[bytes, int] = {}

    @property
    def capacity(self) -> int:
        return self._capacity

    def __len__(self) -> int:
        return len(self._offsets)

    def add_spans(self, payload: Buffer, spans: array[int], base_offset: int) -> int:
        taken = 0
        with memoryview(payload).cast("B") as view:
            for offset, key, _ in _keyed(view, spans, base_offset):
                if key is not None and not self._add(key, offset):
                    return taken
                taken += 1
        return taken

    def keep_flags(self, payload: Buffer, spans: array[int], base_offset: int) -> bytearray:
        flags = bytearray()
        with memoryview(payload).cast("B") as view:
            for offset, key, is_tombstone in _keyed(view, spans, base_offset):
                if key is None:
                    flags.append(WITHOUT_KEY)
                elif self.get(key) > offset:
                    flags.append(OUTDATED)
                else:
                    flags.append(NEWEST_TOMBSTONE if is_tombstone else NEWEST)
        return flags

    def get(self, key: Buffer) -> int:
        return self._offsets.get(self._digest(key), -1)

    def _add(self, key: memoryview, offset: int) -> bool:
        digest = self._digest(key)
        known = self._offsets.get(digest)
        if known is None and len(self._offsets) == self._capacity:
            return False
        self._offsets[digest] = offset if known is None else max(offset, known)
        return True

    def _digest(self, key: Buffer) -> bytes:
        return blake2b(key, key=self._hash_key, digest_size=_DIGEST_BYTES).digest()


def _keyed(
    view: memoryview, spans: array[int], base_offset: int
) -> Iterator[tuple[int, memoryview | None, bool]]:
    """Offset, key (None where null) and whether the value is null, of every span."""
    if spans.itemsize != 8 or len(spans) % SPAN_FIELDS:
        raise ValueError("spans must be an array('q') of whole spans")
    if not 0 <= base_offset < _INT64_MAX - _INT32_MAX:
        raise ValueError(f"base offset {base_offset}")
    _check_spans(spans, len(view))
    for at in range(0, len(spans), SPAN_FIELDS):
        start, size = spans[at + KEY_START], spans[at + KEY_BYTES]
        key = view[start : start + size] if size >= 0 else None
        yield base_offset + spans[at + OFFSET_DELTA], key, spans[at + VALUE_BYTES] < 0


def _check_spans(spans: array[int], payload_bytes: int) -> None:
    for at in range(0, len(spans), SPAN_FIELDS):
        if not 0 <= spans[at + OFFSET_DELTA] <= _INT32_MAX:
            raise ValueError(f"span {at // SPAN_FIELDS} has an impossible offset")
        start, size = spans[at + KEY_START], spans[at + KEY_BYTES]
        if size >= 0 and not (start >= 0 and start + size <= payload_bytes):
            raise ValueError(f"key of span {at // SPAN_FIELDS} lies outside the payload")
