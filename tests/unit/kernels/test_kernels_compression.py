"""Codecs against known bytes and foreign writers, and against bytes meant to hurt."""

import gzip
import random
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from subprocess import run

import lz4.frame
import pytest
import zstandard
from cramjam import snappy

from millstream.kernels.compression import LEVELS, Codec, compress, decompress
from millstream.kernels.errors import MalformedRecords, Reason

MIB = 1 << 20
CODECS = list(Codec)
COMPRESSING = CODECS[1:]
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
XERIAL_HEADER = b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"


def text(size: int, seed: int = 7) -> bytes:
    """Compressible, but not trivially."""
    source = random.Random(seed)
    words = [source.randbytes(6).hex() for _ in range(100)]
    return " ".join(source.choices(words, k=size // 12 + 1)).encode()[:size]


def refused(codec: int, payload: bytes, size_max: int = MIB) -> Reason:
    with pytest.raises(MalformedRecords) as caught:
        decompress(codec, payload, size_max)
    return caught.value.reason


def survives(codec: int, payload: bytes, size_max: int) -> bool:
    """Bounded output or MalformedRecords of the right reason; anything else is raised."""
    try:
        return len(decompress(codec, payload, size_max)) <= size_max
    except MalformedRecords as error:
        return error.reason in (Reason.COMPRESSION, Reason.TOO_LARGE)


def xerial(*blocks: bytes) -> bytes:
    return XERIAL_HEADER + b"".join(struct.pack(">i", len(block)) + block for block in blocks)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, 32_768, 65_537, 300_000])
def test_round_trip(codec: Codec, size: int) -> None:
    payload = text(size)
    packed = compress(codec, memoryview(payload), None)
    assert type(packed) is bytes
    assert decompress(codec, packed, size) == payload
    assert decompress(int(codec), memoryview(bytearray(packed)), size + 1) == payload
    if size:
        assert refused(codec, packed, size - 1) is Reason.TOO_LARGE


@pytest.mark.parametrize("codec", LEVELS)
def test_levels_are_kafkas(codec: Codec) -> None:
    payload = text(20_000)
    for level in (LEVELS[codec][0], LEVELS[codec][-1]):
        assert decompress(codec, compress(codec, payload, level), len(payload)) == payload
    for level in (LEVELS[codec][0] - 1, LEVELS[codec][-1] + 1):
        with pytest.raises(ValueError, match="level"):
            compress(codec, payload, level)
    with pytest.raises(ValueError, match="level"):
        compress(Codec.SNAPPY, payload, 1)


def test_unknown_codec() -> None:
    assert refused(5, b"abc") is Reason.CODEC
    assert refused(-1, b"abc") is Reason.CODEC
    with pytest.raises(ValueError, match="5"):
        compress(5, b"abc", None)


def test_gzip_is_readable_by_and_from_others() -> None:
    payload = text(100_000)
    assert gzip.decompress(compress(Codec.GZIP, payload, None)) == payload
    assert decompress(Codec.GZIP, gzip.compress(payload), MIB) == payload
    members = gzip.compress(payload) + gzip.compress(b"") + gzip.compress(b"tail")
    assert decompress(Codec.GZIP, members, MIB) == payload + b"tail"


def test_gzip_members_are_bounded() -> None:
    """Each member's end copies the rest of the input: 50,000 of them would take minutes."""
    assert refused(Codec.GZIP, gzip.compress(b"") * 1_000) is Reason.COMPRESSION


def test_snappy_is_written_as_java_does() -> None:
    payload = text(70_000)
    packed = compress(Codec.SNAPPY, payload, None)
    assert packed.startswith(XERIAL_HEADER)
    position, blocks = len(XERIAL_HEADER), []
    while position < len(packed):
        (size,) = struct.unpack_from(">i", packed, position)
        blocks.append(bytes(snappy.decompress_raw(packed[position + 4 : position + 4 + size])))
        position += 4 + size
    assert b"".join(blocks) == payload
    assert [len(block) for block in blocks] == [32_768, 32_768, 70_000 - 65_536]


def test_snappy_without_framing_as_librdkafka_writes_it() -> None:
    payload = text(70_000)
    assert decompress(Codec.SNAPPY, bytes(snappy.compress_raw(payload)), MIB) == payload
    assert decompress(Codec.SNAPPY, b"\0", MIB) == b""


def test_lz4_is_written_as_kafka_does() -> None:
    """64 KB independent blocks, no checksums, no content size; Java reads nothing else."""
    packed = compress(Codec.LZ4, text(200_000), None)
    info = lz4.frame.get_frame_info(packed)
    assert info["block_size_id"] == lz4.frame.BLOCKSIZE_MAX64KB
    assert (info["block_linked"], info["content_checksum"], info["block_checksum"]) == (
        (False, False, False)
    )
    assert info["content_size"] == 0


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("checked", [True, False])
def test_lz4_frames_of_others(linked: bool, checked: bool) -> None:
    payload = text(500_000)
    packed = lz4.frame.compress(
        payload,
        block_linked=linked,
        content_checksum=checked,
        block_checksum=checked,
        store_size=checked,
        block_size=lz4.frame.BLOCKSIZE_MAX4MB,
    )
    assert decompress(Codec.LZ4, packed, MIB) == payload


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checked", [True, False])
def test_zstd_frames_of_others(sized: bool, checked: bool) -> None:
    payload = text(500_000)
    compressor = zstandard.ZstdCompressor(write_content_size=sized, write_checksum=checked)
    packed = compressor.compress(payload)
    assert decompress(Codec.ZSTD, packed, MIB) == payload
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    frames = (
        skippable + packed + compressor.compress(b"") + compressor.compress(b"tail") + skippable
    )
    assert decompress(Codec.ZSTD, frames, MIB) == payload + b"tail"
    assert refused(Codec.ZSTD, frames[:-1]) is Reason.COMPRESSION


def test_zstd_of_the_highest_level_streamed(tmp_path: Path) -> None:
    """Without a known size, level 22 needs a window of 128 MB: Java producers do that."""
    packed = ZSTD_MAGIC + b"\x00\x88" + (10 << 3 | 1).to_bytes(3, "little") + b"some bytes"
    assert zstandard.get_frame_parameters(packed).window_size == 128 * MIB
    assert decompress(Codec.ZSTD, packed, MIB) == b"some bytes"
    assert resident_growth_kib(Codec.ZSTD, packed, tmp_path) < 4 * 1024
    larger = packed.replace(b"\x88", b"\x90", 1)
    assert zstandard.get_frame_parameters(larger).window_size == 256 * MIB
    assert refused(Codec.ZSTD, larger) is Reason.COMPRESSION


@pytest.mark.parametrize("codec", COMPRESSING)
def test_every_truncation_is_refused(codec: Codec) -> None:
    packed = compress(codec, text(2_000), None)
    complete = {len(XERIAL_HEADER)} if codec is Codec.SNAPPY else set()
    for cut in set(range(len(packed))) - complete:
        assert refused(codec, packed[:cut]) is Reason.COMPRESSION, cut


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("tail", [b"\0", b"garbage", b"\0" * 100])
def test_bytes_left_over_are_refused(codec: Codec, tail: bytes) -> None:
    assert refused(codec, compress(codec, text(2_000), None) + tail) is Reason.COMPRESSION


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("seed", range(4))
def test_damage_raises_nothing_but_malformed_records(codec: Codec, seed: int) -> None:
    source = random.Random(seed)
    packed = compress(codec, text(5_000), None)
    for _ in range(400):
        damaged = bytearray(packed)
        for _ in range(source.choice((1, 1, 2, 8))):
            damaged[source.randrange(len(damaged) if source.random() < 0.7 else 24)] ^= (
                1 << source.randrange(8)
            )
        assert survives(codec, bytes(damaged), 6_000)


@pytest.mark.parametrize("codec", COMPRESSING)
@pytest.mark.parametrize("seed", range(4))
def test_noise_raises_nothing_but_malformed_records(codec: Codec, seed: int) -> None:
    source = random.Random(seed)
    magic = compress(codec, b"", None)[: source.choice((0, 4, 8, 16))]
    for _ in range(300):
        noise = magic + source.randbytes(source.randrange(60))
        assert survives(codec, noise, 10_000)


def gzip_bomb() -> bytes:
    return gzip.compress(bytes(64 * MIB), 9)


def snappy_bomb() -> bytes:
    return xerial(*[bytes(snappy.compress_raw(bytes(MIB)))] * 64)


def raw_snappy_bomb() -> bytes:
    return bytes(snappy.compress_raw(bytes(64 * MIB)))


def lz4_bomb() -> bytes:
    return bytes(lz4.frame.compress(bytes(64 * MIB), store_size=False))


def sized_lz4_bomb() -> bytes:
    return bytes(lz4.frame.compress(bytes(64 * MIB), store_size=True))


def zstd_bomb() -> bytes:
    return bytes(zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64 * MIB)))


def sized_zstd_bomb() -> bytes:
    return bytes(zstandard.ZstdCompressor().compress(bytes(64 * MIB)))


BOMBS: list[tuple[Codec, Callable[[], bytes]]] = [
    (Codec.GZIP, gzip_bomb),
    (Codec.SNAPPY, snappy_bomb),
    (Codec.SNAPPY, raw_snappy_bomb),
    (Codec.LZ4, lz4_bomb),
    (Codec.LZ4, sized_lz4_bomb),
    (Codec.ZSTD, zstd_bomb),
    (Codec.ZSTD, sized_zstd_bomb),
]


@pytest.mark.parametrize(("codec", "bomb"), BOMBS, ids=lambda value: getattr(value, "__name__", ""))
def test_bomb_ends_at_the_limit(codec: Codec, bomb: Callable[[], bytes]) -> None:
    """64 MiB of zeros under a limit of 1 MiB: memory stays near the limit."""
    payload = bomb()
    peak = peak_of(lambda: refused(codec, payload, MIB))
    assert peak < 3 * MIB
    assert decompress(codec, compress(codec, b"still works", None), MIB) == b"still works"


def test_zstd_run_length_bomb() -> None:
    """Four bytes make 128 KiB: no decompressor that takes the input at once bounds its output."""
    frame = ZSTD_MAGIC + b"\x00\x58"
    block = (128 * 1024 << 3 | 2).to_bytes(3, "little") + b"\0"
    last = (128 * 1024 << 3 | 3).to_bytes(3, "little") + b"\0"
    payload = frame + block * 4_000 + last
    assert decompress(Codec.ZSTD, frame + block * 3 + last, MIB) == bytes(512 * 1024)
    reasons: list[Reason] = []
    assert peak_of(lambda: reasons.append(refused(Codec.ZSTD, payload, MIB))) < 3 * MIB
    assert reasons == [Reason.TOO_LARGE]


@pytest.mark.parametrize(
    ("codec", "lie"),
    [
        (Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + bytes(10)),
        (Codec.SNAPPY, b"\x80\x80\x80\x1e" + bytes(10)),
        (Codec.SNAPPY, xerial(b"\x80\x80\x80\x1e" + bytes(10))),
        (Codec.SNAPPY, XERIAL_HEADER + b"\x7f\xff\xff\xff" + bytes(10)),
        (Codec.SNAPPY, XERIAL_HEADER + b"\xff\xff\xff\xff" + bytes(10)),
        (Codec.LZ4, b"\x04\x22\x4d\x18\x68\x40" + (60 * MIB).to_bytes(8, "little") + b"\x10" * 20),
        (Codec.ZSTD, ZSTD_MAGIC + b"\xa0" + (60 * MIB).to_bytes(4, "little") + b"\x01\0\0"),
        (Codec.ZSTD, ZSTD_MAGIC + b"\x00\xf8" + b"\x01\0\0"),
    ],
    ids=lambda value: value.name if isinstance(value, Codec) else "",
)
def test_claimed_size_is_never_allocated(codec: Codec, lie: bytes) -> None:
    """The claim is below the limit, so the limit would not be enough."""
    reasons: list[Reason] = []
    peak = peak_of(lambda: reasons.append(refused(codec, lie, 64 * MIB)))
    assert reasons == [Reason.COMPRESSION]
    assert peak < MIB


def peak_of(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


RESIDENT = """
import resource, sys
from pathlib import Path
from millstream.kernels.compression import compress, decompress
from millstream.kernels.errors import MalformedRecords
codec, payload = int(sys.argv[1]), Path(sys.argv[2]).read_bytes()
decompress(codec, compress(codec, b"warm", None), 10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(codec, payload, 1 << 20)
except MalformedRecords:
    pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def resident_growth_kib(codec: Codec, payload: bytes, directory: Path) -> int:
    path = directory / "payload"
    path.write_bytes(payload)
    command = [sys.executable, "-c", RESIDENT, str(int(codec)), str(path)]
    return int(run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize(("codec", "bomb"), BOMBS, ids=lambda value: getattr(value, "__name__", ""))
def test_bomb_in_resident_memory(codec: Codec, bomb: Callable[[], bytes], tmp_path: Path) -> None:
    """The same for what the libraries allocate in C, which tracemalloc does not see."""
    assert resident_growth_kib(codec, bomb(), tmp_path) < 12 * 1024


def test_codecs_are_imported_on_first_use() -> None:
    script = (
        "import sys, millstream.kernels.compression\n"
        "print([name for name in ('lz4', 'zstandard', 'cramjam') if name in sys.modules])"
    )
    done = run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_gzip_with_every_optional_header_field() -> None:
    """Extra field, name, comment and header checksum, as RFC 1952 allows."""
    header = b"\x1f\x8b\x08\x1e" + bytes(4) + b"\0\x03" + b"\x02\0ab" + b"name\0" + b"comment\0"
    header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    body = zlib.compressobj(wbits=-15)
    packed = header + body.compress(b"data") + body.flush()
    packed += struct.pack("<II", zlib.crc32(b"data"), 4)
    assert decompress(Codec.GZIP, packed, MIB) == b"data"
