"""Headers of batches in a file or in memory: what does not follow what is before it is noticed."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kits.kernels.kernel_twins import compiled, needs_compiled, plain, twins
from kits.process.cold_files import make_cold
from millstream.kernels.batches import HEADER_BYTES
from millstream.testing.record_batches import BatchSpec, build_batch

kernels = pytest.mark.parametrize("kernel", twins("header_chain"))

SIZES = [10, 300, 5000, 20, 9000, 4000, 61, 3, 100_000, 7]


def chain(sizes: list[int] = SIZES) -> tuple[bytes, list[int]]:
    """Batches of one record each, with offsets from 5 on, and where each begins."""
    data, starts = b"", []
    for number, size in enumerate(sizes):
        starts.append(len(data))
        data += build_batch([(None, bytes(size))], BatchSpec(base_offset=5 + number))
    return data, starts


class Stored:
    """A file of batches."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.path = path
        self.end = len(data)
        self.file = os.open(path, os.O_RDWR)

    def check(
        self,
        kernel: ModuleType,
        *,
        position: int = 0,
        stop: int | None = None,
        offset: int = 0,
        may_wait: bool = True,
    ) -> tuple[int, int]:
        end = self.end if stop is None else stop
        found = kernel.check_file(self.file, position, end, self.end, offset, may_wait)
        assert isinstance(found, tuple)
        return found


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    made = Stored(tmp_path / "segment", chain()[0])
    yield made
    os.close(made.file)


@kernels
def test_whole_batches_are_a_chain_from_each_of_them_to_any_end(
    kernel: ModuleType, stored: Stored
) -> None:
    data, starts = chain()
    ends = [*starts[1:], len(data)]
    for number, start in enumerate(starts):
        assert stored.check(kernel, position=start, offset=5 + number) == (len(data), kernel.WHOLE)
        for end in ends[number:]:
            for stop in {start + 1, end - 1, end}:
                expected = min(one for one in ends if one >= stop)
                assert stored.check(kernel, position=start, stop=stop) == (expected, kernel.WHOLE)
    assert kernel.check_bytes(data, 5)
    assert kernel.check_bytes(b"", 5)


@kernels
def test_an_offset_below_the_expected_one_is_noticed(kernel: ModuleType, stored: Stored) -> None:
    data, starts = chain()
    assert stored.check(kernel, offset=6) == (0, kernel.BROKEN)
    assert not kernel.check_bytes(data, 6)
    swapped = data[starts[1] : starts[2]] + data[: starts[1]]
    assert not kernel.check_bytes(swapped, 0)


@kernels
@pytest.mark.parametrize("fill", [b"\0", b"\xff", b"garbage "])
def test_what_is_overwritten_is_noticed_where_a_header_was(
    kernel: ModuleType, stored: Stored, fill: bytes
) -> None:
    data, starts = chain()
    for start in starts:
        bad = (fill * HEADER_BYTES)[:HEADER_BYTES]
        os.pwrite(stored.file, bad, start)
        for may_wait in (False, True):
            assert stored.check(kernel, may_wait=may_wait) == (start, kernel.BROKEN)
        assert not kernel.check_bytes(os.pread(stored.file, len(data), 0), 0)
        os.pwrite(stored.file, data[start : start + HEADER_BYTES], start)


@kernels
def test_a_file_that_was_cut_is_noticed_at_every_length(kernel: ModuleType, stored: Stored) -> None:
    data, starts = chain([10, 300, 20])
    for left in range(len(data)):
        os.truncate(stored.path, 0)
        os.pwrite(stored.file, data[:left], 0)
        end = max((one for one in starts if left >= one + HEADER_BYTES), default=-1)
        found = kernel.check_file(stored.file, 0, len(data), len(data), 0, True)
        has_last_header = end == starts[-1]
        assert found[1] == (kernel.WHOLE if has_last_header else kernel.SHORT)
        assert not kernel.check_bytes(data[:left], 0) or left in (0, *starts)


@kernels
def test_a_hole_is_noticed_without_a_read(kernel: ModuleType, stored: Stored) -> None:
    """Cut and made as long again: nothing of it is in the page cache, and a read gives zeros."""
    os.truncate(stored.path, 6000)
    os.truncate(stored.path, stored.end)
    assert stored.check(kernel, may_wait=False)[1] == kernel.BROKEN


@kernels
def test_what_is_not_in_the_page_cache_is_not_waited_for(
    kernel: ModuleType, tmp_path: Path
) -> None:
    data, _ = chain([500_000, 10])
    stored = Stored(tmp_path / "cold", data)
    make_cold(stored.file)
    position, outcome = stored.check(kernel, may_wait=False)
    assert outcome == kernel.COLD
    assert position in (0, chain([500_000, 10])[1][1])
    assert stored.check(kernel, may_wait=True) == (len(data), kernel.WHOLE)


@kernels
def test_ranges_outside_of_the_file_are_refused(kernel: ModuleType, stored: Stored) -> None:
    with pytest.raises(ValueError, match="bytes"):
        kernel.check_file(stored.file, -1, 5, 10, 0, True)
    with pytest.raises(ValueError, match="bytes"):
        kernel.check_file(stored.file, 0, 11, 10, 0, True)
    with pytest.raises(OSError, match="descriptor"):
        kernel.check_file(10_000, 0, 5, 100, 0, True)


@needs_compiled("header_chain")
@pytest.mark.parametrize("seed", range(4))
def test_the_twins_agree_on_damaged_bytes(stored: Stored, seed: int) -> None:
    generator = random.Random(seed)
    ours, theirs = compiled("header_chain"), plain("header_chain")
    assert ours is not None
    data, starts = chain()
    for _ in range(150):
        damaged = bytearray(data)
        at = generator.choice(starts) + generator.randrange(HEADER_BYTES)
        damaged[at] = generator.randrange(256)
        os.pwrite(stored.file, damaged, 0)
        offset = generator.choice([0, 5, 6])
        for may_wait in (False, True):
            found = [stored.check(one, offset=offset, may_wait=may_wait) for one in (ours, theirs)]
            assert found[0] == found[1], (seed, at, damaged[at])
        assert ours.check_bytes(damaged, offset) == theirs.check_bytes(damaged, offset)
