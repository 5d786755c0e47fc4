"""The four codecs of Kafka's record batches, with output that never exceeds what the caller allows.

The bytes are untrusted: a length they claim is checked against the limit before memory is
allocated, output is pulled in chunks, and every error of a library becomes MalformedRecords.
The libraries are imported on first use, because each costs as much as the rest of the kernels.
"""

import threading
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from millstream.kernels.errors import MalformedRecords, Reason

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["Codec", "compress", "decompress"]


class Codec(IntEnum):
    """Compression types as a batch's attributes carry them."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


LEVELS: Final = {
    Codec.GZIP: range(1, 10),
    Codec.LZ4: range(1, 18),
    Codec.ZSTD: range(-131_072, 23),
}
"""Levels that Kafka's configuration allows; the other codecs have none."""

_CHUNK_BYTES: Final = 128 * 1024
"""Output pulled at a time: the largest zstd block, two of Kafka's lz4 blocks."""

_LIKELY_RATIO: Final = 4
"""What records are often compressed by; reserving that multiple of the input is safe."""

_BLOCKS_MAX: Final = 16_384
"""Blocks in one stream or frame. 64 MiB hold 2,048 of Java's; more only burns our CPU."""

_FRAMES_MAX: Final = 64
"""Concatenated frames or gzip members. zlib copies the rest of the input at each member's end,
so that thousands of empty ones would be quadratic."""

_GZIP_WRAPPER: Final = 31
"""zlib's wbits for the largest window inside a gzip header and trailer."""

# Java's SnappyOutputStream: magic, version 1, compatible with 1, then i32 length + raw snappy.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_LENGTH_BYTES_MAX: Final = 5
_SNAPPY_COPY_BYTES_MAX: Final = 64
_SNAPPY_COPY_BYTES_MIN: Final = 3
"""Snappy's best ratio is 64 bytes out of 3: a larger claim is false."""

_ZSTD_WINDOW_BYTES: Final = 8 << 20
"""What levels up to 19 need; decompressors of this size are kept."""
_ZSTD_WINDOW_BYTES_MAX: Final = 128 << 20
"""What level 22, Kafka's highest, needs; its pages are touched only as output fills them."""
_ZSTD_SKIPPABLE: Final = 0x184D2A50
_ZSTD_FRAME_HEADER_BYTES_MAX: Final = 18
_ZSTD_BLOCK_RLE: Final = 1
_ZSTD_SIZE_UNKNOWN: Final = 2**64 - 1

_kept = threading.local()


def compress(codec: int, payload: "Buffer", level: int | None = None) -> bytes:
    """`payload` in the form that Kafka's own producers give it; no level is the codec's default."""
    codec = Codec(codec)
    if level is not None and level not in LEVELS.get(codec, ()):
        raise ValueError(f"{codec.name.lower()} has no level {level}")
    return _COMPRESS[codec](memoryview(payload).cast("B"), level)


def decompress(codec: int, payload: "Buffer", size_max: int) -> bytes:
    """The original bytes, at most `size_max` of them.

    Raises MalformedRecords: CODEC for an unknown codec, TOO_LARGE beyond the limit, COMPRESSION
    for everything else that is wrong, bytes missing or left over included. Nothing else.
    """
    unpack = _DECOMPRESS.get(codec)
    if unpack is None:
        raise MalformedRecords(Reason.CODEC, detail=f"codec {codec}")
    return unpack(memoryview(payload).cast("B"), size_max)


def _broken(detail: object) -> MalformedRecords:
    return MalformedRecords(Reason.COMPRESSION, detail=str(detail))


class _Output:
    """Chunks of output and the room that is left for more."""

    def __init__(self, size_max: int) -> None:
        self._chunks: list[bytes] = []
        self._room = size_max

    def next_size_max(self, likely_bytes: int = 0) -> int:
        """How much to pull next: one byte beyond the limit, to distinguish full from too large.

        More than a chunk only where it is likely to come: one chunk needs no joining.
        """
        return min(max(_CHUNK_BYTES, likely_bytes), self._room + 1)

    def add(self, chunk: bytes) -> None:
        self.reserve(len(chunk))
        self._chunks.append(chunk)

    def reserve(self, size: int) -> None:
        if size > self._room:
            raise MalformedRecords(Reason.TOO_LARGE, detail="decompressed size above the limit")
        self._room -= size

    def append_reserved(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def joined(self) -> bytes:
        return b"".join(self._chunks)


def _keep(payload: memoryview, _level: int | None) -> bytes:
    return bytes(payload)


def _unkeep(payload: memoryview, size_max: int) -> bytes:
    output = _Output(size_max)
    output.reserve(len(payload))
    return bytes(payload)


def _gzip(payload: memoryview, level: int | None) -> bytes:
    compressor = zlib.compressobj(-1 if level is None else level, zlib.DEFLATED, _GZIP_WRAPPER)
    return compressor.compress(payload) + compressor.flush()


def _gunzip(payload: memoryview, size_max: int) -> bytes:
    output = _Output(size_max)
    rest: memoryview | bytes = payload
    for _ in range(_FRAMES_MAX):
        rest = _gunzip_member(rest, output)
        if not rest:
            return output.joined()
    raise _broken(f"more than {_FRAMES_MAX} gzip members")


def _gunzip_member(payload: memoryview | bytes, output: _Output) -> bytes:
    """Pull one member into `output`; what follows it is returned."""
    member = zlib.decompressobj(_GZIP_WRAPPER)
    try:
        while not member.eof:
            chunk = member.decompress(payload, output.next_size_max())
            payload = member.unconsumed_tail
            if not chunk and not payload and not member.eof:
                raise _broken("gzip ends early")
            output.add(chunk)
    except zlib.error as error:
        raise _broken(error) from None
    return member.unused_data


def _snappy(payload: memoryview, _level: int | None) -> bytes:
    from cramjam import snappy

    parts = [_XERIAL_HEADER]
    for start in range(0, len(payload), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(payload[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4), block)
    return b"".join(parts)


def _unsnappy(payload: memoryview, size_max: int) -> bytes:
    output = _Output(size_max)
    if bytes(payload[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        _unsnappy_block(payload, output)
        return output.joined()
    if len(payload) < len(_XERIAL_HEADER):
        raise _broken("snappy header ends early")
    position = len(_XERIAL_HEADER)
    for _ in range(_BLOCKS_MAX):
        if position == len(payload):
            return output.joined()
        start = position + 4
        position = start + int.from_bytes(payload[position:start], signed=True)
        if not start < position <= len(payload):
            raise _broken("snappy block out of bounds")
        _unsnappy_block(payload[start:position], output)
    raise _broken(f"more than {_BLOCKS_MAX} snappy blocks")


def _unsnappy_block(block: memoryview, output: _Output) -> None:
    from cramjam import DecompressionError, snappy

    size = _snappy_size(block)
    if size * _SNAPPY_COPY_BYTES_MIN > len(block) * _SNAPPY_COPY_BYTES_MAX:
        raise _broken(f"{size} bytes cannot come from {len(block)} of snappy")
    output.reserve(size)
    try:
        output.append_reserved(bytes(snappy.decompress_raw(block)))
    except DecompressionError as error:
        raise _broken(error) from None


def _snappy_size(block: memoryview) -> int:
    """The uncompressed size that a raw block claims in its first bytes."""
    size = 0
    for index, byte in enumerate(block[:_SNAPPY_LENGTH_BYTES_MAX]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size
    raise _broken("snappy length")


def _lz4(payload: memoryview, level: int | None) -> bytes:
    from lz4 import frame

    compressed: bytes = frame.compress(
        payload,
        compression_level=0 if level is None else level,
        block_size=frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return compressed


def _unlz4(payload: memoryview, size_max: int) -> bytes:
    from lz4 import frame

    output = _Output(size_max)
    context = frame.create_decompression_context()
    likely_bytes = _LIKELY_RATIO * len(payload)
    position = 0
    while True:
        try:
            chunk, consumed, at_end = frame.decompress_chunk(
                context, payload[position:], max_length=output.next_size_max(likely_bytes)
            )
        except RuntimeError as error:
            raise _broken(error) from None
        output.add(chunk)
        position += consumed
        if at_end:
            break
        if not chunk and not consumed:
            raise _broken("lz4 frame ends early")
    if position != len(payload):
        raise _broken("bytes after the lz4 frame")
    return output.joined()


def _zstd(payload: memoryview, level: int | None) -> bytes:
    from zstandard import ZstdCompressor

    compressed: bytes = ZstdCompressor(3 if level is None else level).compress(payload)
    return compressed


def _unzstd(payload: memoryview, size_max: int) -> bytes:
    from zstandard import ZstdError

    output = _Output(size_max)
    try:
        window_bytes, size_claimed = _zstd_scan(payload, size_max)
        reader = _zstd_decompressor(window_bytes).stream_reader(payload, read_across_frames=True)
        while chunk := reader.read(output.next_size_max()):
            output.add(chunk)
    except ZstdError as error:
        raise _broken(error) from None
    joined = output.joined()
    # The library itself misses a wrong claim where the last block is empty.
    if size_claimed not in (len(joined), None):
        raise _broken(f"{len(joined)} bytes in zstd frames that claim {size_claimed}")
    return joined


def _zstd_decompressor(window_bytes: int) -> Any:
    from zstandard import ZstdDecompressor

    if window_bytes > _ZSTD_WINDOW_BYTES:
        return ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
    if not hasattr(_kept, "zstd"):
        _kept.zstd = ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    return _kept.zstd


def _zstd_scan(payload: memoryview, size_max: int) -> tuple[int, int | None]:
    """The largest window of all frames and the size they claim, after proof that they are whole.

    The library's bounded reader takes a cut stream for a finished one, and its other readers
    bound the input but not the output; block headers say where each frame must end.
    """
    window_bytes = 0
    sizes: list[int | None] = []
    position = 0
    for _ in range(_FRAMES_MAX):
        frame_window_bytes, size, position = _zstd_frame(payload, position)
        window_bytes = max(window_bytes, frame_window_bytes)
        sizes.append(size)
        if position > len(payload):
            raise _broken("zstd ends early")
        if sum(size or 0 for size in sizes) > size_max:
            raise MalformedRecords(Reason.TOO_LARGE, detail="decompressed size above the limit")
        if position == len(payload):
            known = [size for size in sizes if size is not None]
            return window_bytes, sum(known) if len(known) == len(sizes) else None
    raise _broken(f"more than {_FRAMES_MAX} zstd frames")


def _zstd_frame(payload: memoryview, start: int) -> tuple[int, int | None, int]:
    """Window, claimed size and end of the frame at `start`; the end may lie beyond the payload."""
    from zstandard import frame_header_size, get_frame_parameters

    head = payload[start : start + _ZSTD_FRAME_HEADER_BYTES_MAX]
    if int.from_bytes(head[:4], "little") & 0xFFFF_FFF0 == _ZSTD_SKIPPABLE:
        return 0, 0, start + 8 + int.from_bytes(head[4:8], "little")
    parameters = get_frame_parameters(head)
    size = parameters.content_size
    end = _zstd_blocks_end(payload, start + frame_header_size(head))
    return (
        parameters.window_size,
        None if size == _ZSTD_SIZE_UNKNOWN else size,
        end + 4 * parameters.has_checksum,
    )


def _zstd_blocks_end(payload: memoryview, position: int) -> int:
    for _ in range(_BLOCKS_MAX):
        head = int.from_bytes(payload[position : position + 3], "little")
        is_last, kind, size = head & 1, head >> 1 & 3, head >> 3
        position += 3 + (1 if kind == _ZSTD_BLOCK_RLE else size)
        if is_last or position > len(payload):
            return position
    raise _broken(f"more than {_BLOCKS_MAX} zstd blocks")


_COMPRESS: Final[dict[int, Callable[[memoryview, int | None], bytes]]] = {
    Codec.NONE: _keep,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}

_DECOMPRESS: Final[dict[int, Callable[[memoryview, int], bytes]]] = {
    Codec.NONE: _unkeep,
    Codec.GZIP: _gunzip,
    Codec.SNAPPY: _unsnappy,
    Codec.LZ4: _unlz4,
    Codec.ZSTD: _unzstd,
}
