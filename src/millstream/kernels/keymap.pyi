"""Newest offset per key in a fixed amount of memory: what compaction remembers of a log.

A key is remembered by a keyed 128-bit hash, 24 bytes an entry, as Kafka's cleaner does; the hash
key is random per map, so no client can choose colliding keys and have records removed.
"""

from array import array
from typing import Final

from typing_extensions import Buffer

__all__ = ["ENTRY_BYTES", "KeyMap"]

ENTRY_BYTES: Final = 24

class KeyMap:
    """Open addressing over `memory_bytes`; full at a load factor of 0.9."""

    def __init__(self, memory_bytes: int, hash_key: bytes) -> None:
        """`hash_key` is 16 random bytes. Less memory than one entry needs is a ValueError."""

    @property
    def capacity(self) -> int:
        """Keys it takes before it is full."""

    def __len__(self) -> int: ...
    def add_spans(self, payload: Buffer, spans: array[int], base_offset: int) -> int:
        """Remember the keyed records (spans of `records.locate`); larger offsets win.

        Returns how many records were taken, those without a key included: fewer than all means
        that the map is full and the record with that index did not fit.
        """

    def keep_flags(self, payload: Buffer, spans: array[int], base_offset: int) -> bytearray:
        """One byte per record: 0 when the map holds a larger offset of its key, 2 when it has no
        key, else 1, or 3 when it is a tombstone. A key unknown to the map is treated as newest.
        """

    def get(self, key: Buffer) -> int:
        """Newest offset of the key, or -1."""
