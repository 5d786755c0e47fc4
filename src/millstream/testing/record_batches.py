"""Record batches built and read in plain Python, apart from the kernels, for tests and tools."""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.kernels.compression import Codec, compress, decompress

_HEADER: Final = Struct(">qiibIhiqqqhii")
_BODY_AT: Final = 21
_CONTROL: Final = 0x20
_TRANSACTIONAL: Final = 0x10


class PlainRecord(NamedTuple):
    """One record as a reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    is_control: bool = False


class BatchSpec(NamedTuple):
    """Everything about a batch but its records.

    The default timestamp is a second after 1970 began, so that tests repeat byte for byte. To a
    log with the default retention of seven days such records are long overdue: the first
    `run_retention` on a real clock removes them. Give `timestamp_ms` wherever that matters.
    """

    base_offset: int = 0
    leader_epoch: int = 0
    codec: Codec = Codec.NONE
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False
    timestamp_ms: int = 1_000


Pair = tuple[bytes | None, bytes | None]


def varint(number: int) -> bytes:
    """Zigzag varint, as records use it."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def build_batch(
    pairs: Sequence[Pair],
    spec: BatchSpec = BatchSpec(),  # noqa: B008 - immutable
    *,
    timestamps: Sequence[int] | None = None,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> bytearray:
    """One batch of (key, value) pairs, from 1970 unless `spec` or `timestamps` say otherwise."""
    stamps = list(timestamps) if timestamps is not None else [spec.timestamp_ms] * len(pairs)
    body = b"".join(
        _record(pair, number, stamps[number] - stamps[0], headers)
        for number, pair in enumerate(pairs)
    )
    if spec.codec is not Codec.NONE:
        body = compress(spec.codec, body, None)
    attributes = spec.codec | (_TRANSACTIONAL if spec.is_transactional else 0)
    attributes |= _CONTROL if spec.is_control else 0
    fields = (
        attributes,
        len(pairs) - 1,
        stamps[0],
        max(stamps),
        spec.producer_id,
        spec.producer_epoch,
        spec.base_sequence,
        len(pairs),
    )
    batch = bytearray(
        _HEADER.pack(spec.base_offset, 49 + len(body), spec.leader_epoch, 2, 0, *fields)
    )
    batch += body
    batch[17:21] = crc32c(memoryview(batch)[_BODY_AT:]).to_bytes(4, "big")
    return batch


def build_marker(spec: BatchSpec, *, is_commit: bool, coordinator_epoch: int = 0) -> bytearray:
    """The control batch that ends the producer's transaction."""
    key = Struct(">hh").pack(0, 1 if is_commit else 0)
    value = Struct(">hi").pack(0, coordinator_epoch)
    spec = spec._replace(is_control=True, is_transactional=True, base_sequence=-1)
    return build_batch([(key, value)], spec)


def read_records(data: bytes | bytearray | memoryview) -> list[PlainRecord]:
    """All records of whole batches; a cut batch at the end is left out."""
    found: list[PlainRecord] = []
    at = 0
    view = memoryview(data)
    while len(view) - at >= _HEADER.size:
        size = int.from_bytes(view[at + 8 : at + 12], "big") + 12
        if size > len(view) - at:
            break
        found += _batch_records(view[at : at + size])
        at += size
    return found


def _record(
    pair: Pair, number: int, delta: int, headers: Sequence[tuple[str, bytes | None]]
) -> bytes:
    body = b"\0" + varint(delta) + varint(number)
    for part in pair:
        body += varint(-1) if part is None else varint(len(part)) + part
    body += varint(len(headers))
    for name, value in headers:
        raw = name.encode()
        body += varint(len(raw)) + raw
        body += varint(-1) if value is None else varint(len(value)) + value
    return varint(len(body)) + body


def _batch_records(batch: memoryview) -> Iterator[PlainRecord]:
    head = _HEADER.unpack_from(batch)
    base_offset, attributes, first_ms, max_ms, count = head[0], head[5], head[7], head[8], head[12]
    body = bytes(batch[_HEADER.size :])
    codec = Codec(attributes & 7)
    if codec is not Codec.NONE:
        body = decompress(codec, body, 2**31 - 1)
    reader = _Reader(body)
    for _ in range(count):
        reader.varint()
        reader.at += 1
        delta_ms, delta = reader.varint(), reader.varint()
        key, value = reader.optional(), reader.optional()
        headers = tuple(
            ((reader.optional() or b"").decode(), reader.optional()) for _ in range(reader.varint())
        )
        stamp = max_ms if attributes & 8 else first_ms + delta_ms
        control = bool(attributes & _CONTROL)
        yield PlainRecord(base_offset + delta, stamp, key, value, headers, control)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        number = shift = 0
        while True:
            byte = self.data[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1)

    def optional(self) -> bytes | None:
        size = self.varint()
        if size < 0:
            return None
        part = self.data[self.at : self.at + size]
        self.at += size
        return part
