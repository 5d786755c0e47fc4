"""Record batches v2 built byte by byte with `struct`: what the kernels are compared against."""

import struct
from collections.abc import Sequence

from crc32c import crc32c

Header = tuple[bytes, bytes | None]

HEADER_BYTES = 61
SIZE_MAX = 1 << 20


def varint(number: int) -> bytes:
    """Zigzag, least significant seven bits first."""
    value = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    offset_delta: int,
    *,
    key: bytes | None = None,
    value: bytes | None = b"value",
    timestamp_delta: int = 0,
    headers: Sequence[Header] = (),
) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value)
    body += varint(len(headers)) + b"".join(sized(name) + sized(data) for name, data in headers)
    return varint(len(body)) + body


def batch(
    payload: bytes = b"",
    *,
    base_offset: int = 0,
    count: int = 1,
    last_offset_delta: int | None = None,
    leader_epoch: int = 7,
    attributes: int = 0,
    magic: int = 2,
    base_timestamp: int = 1_000,
    max_timestamp: int = 2_000,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """One batch; `producer` is id, epoch and base sequence."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    covered = struct.pack(
        ">hiqqqhii", attributes, delta, base_timestamp, max_timestamp, *producer, count
    )
    covered += payload
    prefix = struct.pack(
        ">qiibI", base_offset, len(covered) + 9, leader_epoch, magic, crc32c(covered)
    )
    return prefix + covered


def batch_of(records: Sequence[bytes], **fields: int) -> bytes:
    return batch(b"".join(records), count=len(records), **fields)  # type: ignore[arg-type]
