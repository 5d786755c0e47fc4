"""The compiled column kernels read no byte outside their buffers, whatever the bytes claim.

Every buffer is placed so that it ends exactly where a forbidden page begins: one byte too far is
a segmentation fault. It happens in a process of its own, which must come back.
"""

import ctypes
import mmap
import os
import subprocess
import sys
from array import array
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kits.kernels.column_batches import Record, batch_of, columns_of
from kits.kernels.kernel_twins import compiled, twins
from millstream.kernels.column_types import BinaryColumn, DecodeOptions, HeaderColumn
from millstream.kernels.errors import MalformedRecords

PAGE = mmap.PAGESIZE
NO_ACCESS = 0
SEED = 20_260
RECORDS = [
    Record(b"key" * (index % 3), b"v" * (index * 7 % 150) if index % 4 else None, index * 1000,
           ((b"h", b"x"), (b"i", None)) if index % 5 == 0 else ())
    for index in range(40)
]  # fmt: skip


class Edge:
    """Memory whose last byte is followed by a page without any access."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, (pages + 1) * PAGE)
        self._size = pages * PAGE
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + self._size
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE), NO_ACCESS):
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, data: Any) -> memoryview:
        flat = bytes(memoryview(data).cast("B"))
        start = self._size - len(flat)
        self._map[start : self._size] = flat
        return memoryview(self._map)[start : self._size]


def decode_damaged_batches(kernel: Any) -> int:
    random = Random(SEED)
    whole = batch_of(RECORDS) + batch_of(RECORDS, base_offset=40)
    edge = Edge(pages=len(whole) // PAGE + 1)
    refused = 0
    for attempt in range(6000):
        data = bytearray(whole)
        for _ in range(attempt % 4):
            data[random.randrange(61, len(data))] = random.choice((0, 1, 0x7F, 0x80, 0xFF, 77))
        if attempt % 3 == 0:
            # A shorter batch that still claims to be whole, so that its last record is cut.
            cut = random.randrange(61, len(data) // 2)
            data = data[:8] + (cut - 12).to_bytes(4, "big") + data[12:cut]
        options = DecodeOptions(check_crc=False, with_headers=attempt % 2 == 0)
        try:
            kernel.decode(edge.put(data), 0, len(data), options)
        except MalformedRecords:
            refused += 1
    return refused


def encode_damaged_columns(kernel: Any) -> int:
    random = Random(SEED)
    refused = 0

    def at_edge(buffer: Any) -> Any:
        return None if buffer is None else Edge(pages=2).put(buffer)

    def moved(column: BinaryColumn) -> BinaryColumn:
        return replace(
            column,
            offsets=at_edge(damaged(column.offsets)),
            data=at_edge(column.data),
            validity=at_edge(column.validity),
            first=random.random() < 0.1,
        )

    def damaged(offsets: Any) -> "array[int]":
        numbers = array("i", bytes(memoryview(offsets).cast("B")))
        if random.random() < 0.2:
            numbers[random.randrange(len(numbers))] = random.choice((-1, 2**31 - 1, 5000, 7))
        return numbers if random.random() < 0.9 else numbers[:-1]

    plain = columns_of(RECORDS)
    headers: Any = plain.headers
    for _ in range(300):
        lists = HeaderColumn(
            list_offsets=at_edge(damaged(headers.list_offsets)),
            rows=headers.rows,
            keys=moved(headers.keys),
            values=moved(headers.values),
        )
        columns_in = replace(
            plain,
            timestamps=at_edge(memoryview(plain.timestamps).cast("B")[: 8 * plain.rows]),
            keys=moved(plain.keys) if plain.keys else None,
            values=moved(plain.values) if plain.values else None,
            headers=lists,
        )
        try:
            kernel.encode_many(columns_in, 0, columns_in.rows, size_max=700)
        except ValueError:
            refused += 1
    return refused


@pytest.mark.parametrize("kernel", twins("column_decode")[:1])
def test_no_byte_beyond_the_buffer_is_read(kernel: Any) -> None:
    """Replay of one seed:

    PYTHONPATH=tests python tests/unit/kernels/test_kernels_columns_bounds.py (seed: SEED)
    """
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    decodes_refused, encodes_refused = map(int, done.stdout.split())
    assert 2000 < decodes_refused < 6000
    assert 50 < encodes_refused < 300


if __name__ == "__main__":
    print(decode_damaged_batches(compiled("column_decode")))
    print(encode_damaged_columns(compiled("column_encode")))
