"""CRC-32C: both twins, and both ways of the compiled one, against the package and known values."""

import mmap
import random
import threading
from typing import Any

import crc32c as package
import pytest

from kits.kernels.kernel_twins import compiled, needs_compiled, twins

SIZES = [*range(70), 1023, 3071, 3072, 3073, 6144, 10_007, 32_767, 32_768, 100_003]


@pytest.mark.parametrize("kernel", twins("crc"))
def test_known_values(kernel: Any) -> None:
    """The check value of the Castagnoli polynomial and those of RFC 3720, B.4."""
    assert kernel.crc32c(b"123456789") == 0xE3069283
    assert kernel.crc32c(bytes(32)) == 0x8A9136AA
    assert kernel.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert kernel.crc32c(b"") == 0


@needs_compiled("crc")
@pytest.mark.parametrize("function", ["crc32c", "crc32c_by_tables"])
def test_checksums_are_those_of_the_package(function: str) -> None:
    checksum = getattr(compiled("crc"), function)
    source = random.Random(3)
    for size in SIZES:
        data = source.randbytes(size)
        assert checksum(data) == package.crc32c(data), size
        assert checksum(memoryview(data)[1:]) == package.crc32c(data[1:]), size
        cut = size // 3
        assert checksum(data[cut:], checksum(data[:cut])) == package.crc32c(data), size


@pytest.mark.parametrize("kernel", twins("crc"))
def test_any_contiguous_buffer_will_do(kernel: Any) -> None:
    expected = kernel.crc32c(b"abcd" * 1024)
    with mmap.mmap(-1, 4096) as mapped:
        mapped[:] = b"abcd" * 1024
        assert kernel.crc32c(mapped) == expected
    assert kernel.crc32c(bytearray(b"abcd" * 1024)) == expected
    assert kernel.crc32c(memoryview(b"abcd" * 1024).cast("I")) == expected
    with pytest.raises((BufferError, ValueError)):
        kernel.crc32c(memoryview(b"abcd")[::2])
    with pytest.raises(TypeError):
        kernel.crc32c("text")


@pytest.mark.parametrize("kernel", twins("crc"))
def test_a_buffer_cannot_shrink_while_it_is_summed_up(kernel: Any) -> None:
    """Other threads run meanwhile: what they may not do is take the bytes away."""
    data = bytearray(8 << 20)
    expected = kernel.crc32c(data)
    found: list[int] = []
    summing = threading.Thread(target=lambda: found.append(kernel.crc32c(data)))
    summing.start()
    while summing.is_alive():
        try:
            data.append(0)
            data.pop()
        except BufferError:
            continue
    assert found[0] in (expected, kernel.crc32c(bytes(len(data) + 1)))


@pytest.mark.parametrize("kernel", twins("crc"))
def test_a_checksum_follows_a_change_without_the_rest_of_the_bytes(kernel: Any) -> None:
    source = random.Random(7)
    for size in [*SIZES[1:], 524_288]:
        data = source.randbytes(size)
        start = source.randrange(size)
        end = source.randrange(start, min(size, start + 40)) + 1
        changed = data[:start] + source.randbytes(end - start) + data[end:]
        difference = kernel.crc32c(data[start:end]) ^ kernel.crc32c(changed[start:end])
        moved = kernel.shift_difference(difference, size - end)
        assert kernel.crc32c(data) ^ moved == package.crc32c(changed), (size, start, end)


@pytest.mark.parametrize("kernel", twins("crc"))
def test_differences_move_over_any_number_of_bytes(kernel: Any) -> None:
    assert kernel.shift_difference(0x1234, 0) == 0x1234
    assert kernel.shift_difference(0, 1 << 40) == 0
    halves = kernel.shift_difference(kernel.shift_difference(0x89ABCDEF, 1 << 40), 123_456_789)
    assert kernel.shift_difference(0x89ABCDEF, (1 << 40) + 123_456_789) == halves
    with pytest.raises(ValueError, match="below zero"):
        kernel.shift_difference(1, -1)
