"""The log's unit: transactions that were written and synced together.

A batch is written only when the one before it is durable. So after a crash at most the last batch
of the last log is torn, and a whole batch behind a broken one means that the disk lost something
which had been promised: that is damage, not a torn end.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from millstream.coordination.keeper.changes import Txn, decode_txn, encode_txn
from millstream.coordination.keeper.jute import JuteReader
from millstream.kernels.crc import crc32c

_MAGIC: Final = b"MSKB"
_HEADER: Final = Struct(">4sII")


class WalkedLog(NamedTuple):
    """The content of a log file."""

    txns: list[Txn]
    valid_bytes: int
    """Where the whole batches end."""
    has_batch_behind: bool
    """Whether a whole batch comes after that."""


def encode_batch(txns: Sequence[Txn], salt: bytes) -> bytes:
    """The salt in the checksum keeps clients from writing data that looks like a batch."""
    payload = b"".join(map(encode_txn, txns))
    return _HEADER.pack(_MAGIC, len(payload), _checksum(payload, salt)) + payload


def walk_log(data: bytes, salt: bytes) -> WalkedLog:
    """All whole batches from the start, up to the first that is not."""
    txns: list[Txn] = []
    position = 0
    while (payload := _batch_at(data, position, salt)) is not None:
        reader = JuteReader(payload)
        while reader.remaining:
            txns.append(decode_txn(reader))
        position += _HEADER.size + len(payload)
    return WalkedLog(txns, position, _has_batch(data, position, salt))


def _has_batch(data: bytes, start: int, salt: bytes) -> bool:
    position = data.find(_MAGIC, start)
    while position >= 0:
        if _batch_at(data, position, salt) is not None:
            return True
        position = data.find(_MAGIC, position + 1)
    return False


def _batch_at(data: bytes, position: int, salt: bytes) -> bytes | None:
    start = position + _HEADER.size
    if start > len(data):
        return None
    magic, size, checksum = _HEADER.unpack_from(data, position)
    if magic != _MAGIC or not 0 < size <= len(data) - start:
        return None
    payload = data[start : start + size]
    return payload if _checksum(payload, salt) == checksum else None


def _checksum(payload: bytes, salt: bytes) -> int:
    return crc32c(payload, crc32c(salt))
