"""Newest offset per key; every test runs on both twins."""

import threading
from array import array
from functools import partial
from typing import Any

import pytest

from kits.kernels.kernel_twins import compiled, needs_compiled, twins
from kits.kernels.record_bytes import record
from millstream.kernels import records

both = pytest.mark.parametrize("kernel", twins("keymap"))

SECRET = bytes(range(16))
Keyed = tuple[bytes | None, bytes | None]


def payload_of(pairs: list[Keyed]) -> tuple[bytes, "array[int]"]:
    data = b"".join(record(at, key=key, value=value) for at, (key, value) in enumerate(pairs))
    return data, records.locate(data, 0, len(data), len(pairs))


def keys(*names: bytes | None) -> tuple[bytes, "array[int]"]:
    return payload_of([(name, b"value") for name in names])


@both
def test_newest_offset_of_each_key(kernel: Any) -> None:
    key_map = kernel.KeyMap(10_000, SECRET)
    data, spans = keys(b"a", b"b", None, b"a", b"")
    assert key_map.add_spans(data, spans, 100) == 5
    assert len(key_map) == 3
    assert [key_map.get(key) for key in (b"a", b"b", b"", b"c")] == [103, 101, 104, -1]
    assert key_map.get(memoryview(b"xa")[1:]) == 103


@both
def test_larger_offset_wins_whatever_the_order(kernel: Any) -> None:
    key_map = kernel.KeyMap(10_000, SECRET)
    for base_offset in (50, 10, 70, 0):
        key_map.add_spans(*keys(b"a", b"b"), base_offset)
    assert (key_map.get(b"a"), key_map.get(b"b"), len(key_map)) == (70, 71, 2)


@both
def test_offset_zero_and_the_largest_are_remembered(kernel: Any) -> None:
    key_map = kernel.KeyMap(10_000, SECRET)
    key_map.add_spans(*keys(b"a"), 0)
    assert key_map.get(b"a") == 0
    assert key_map.keep_flags(*keys(b"a"), 0) == b"\1"
    base_offset = 2**63 - 2**31 - 1
    key_map.add_spans(b"k", array("q", [0, 1, 2**31 - 1, 0, 0, 1, 0]), base_offset)
    assert key_map.get(b"k") == 2**63 - 2


@both
def test_keep_flags(kernel: Any) -> None:
    key_map = kernel.KeyMap(10_000, SECRET)
    pairs: list[Keyed] = [
        (b"a", b"old"),
        (b"b", None),
        (None, b"no key"),
        (b"a", b"new"),
        (b"c", None),
        (b"b", b"alive again"),
        (b"d", b""),
        (None, None),
    ]
    data, spans = payload_of(pairs)
    assert key_map.keep_flags(data, spans, 100) == bytes((1, 3, 2, 1, 3, 1, 1, 2))
    assert len(key_map) == 0
    key_map.add_spans(data, spans, 100)
    flags = key_map.keep_flags(data, spans, 100)
    assert isinstance(flags, bytearray)
    assert flags == bytes((0, 0, 2, 1, 3, 1, 1, 2))
    assert key_map.keep_flags(data, spans, 99) == bytes((0, 0, 2, 0, 0, 0, 0, 2))
    assert key_map.keep_flags(data, spans, 106) == bytes((1, 3, 2, 1, 3, 1, 1, 2))
    assert key_map.keep_flags(b"", array("q"), 0) == b""


@both
@pytest.mark.parametrize("memory_bytes", [72, 240, 2_400, 24_007])
def test_full_at_nine_tenths(kernel: Any, memory_bytes: int) -> None:
    key_map = kernel.KeyMap(memory_bytes, SECRET)
    capacity = memory_bytes // kernel.ENTRY_BYTES * 9 // 10
    assert key_map.capacity == capacity
    names = [b"key-%d" % at for at in range(capacity)]
    assert key_map.add_spans(*keys(*names), 0) == capacity
    assert len(key_map) == capacity
    assert [key_map.get(name) for name in names] == list(range(capacity))
    assert key_map.get(b"other") == -1
    # Known keys and null keys still fit; the first new one does not, nor what follows it.
    assert key_map.add_spans(*keys(names[0], None, names[-1], b"new", names[0]), 5_000) == 3
    assert key_map.get(names[0]) == 5_000
    assert key_map.get(names[-1]) == 5_002
    assert key_map.get(b"new") == -1
    assert len(key_map) == capacity
    assert key_map.keep_flags(*keys(names[0], b"new"), 0) == bytes((0, 1))


@both
def test_keys_of_every_length_are_told_apart(kernel: Any) -> None:
    key_map = kernel.KeyMap(100_000, SECRET)
    names = [bytes(length) for length in range(300)]
    assert key_map.add_spans(*keys(*names), 0) == 300
    assert [key_map.get(name) for name in names] == list(range(300))


@both
def test_smallest_map_takes_one_key(kernel: Any) -> None:
    key_map = kernel.KeyMap(48, SECRET)
    assert key_map.capacity == kernel.KeyMap(71, SECRET).capacity == 1
    assert key_map.add_spans(*keys(b"a", b"a", b"b"), 0) == 2
    assert (key_map.get(b"a"), key_map.get(b"b")) == (1, -1)


@both
@pytest.mark.parametrize("memory_bytes", [-1, 0, 24, 47])
def test_too_little_memory(kernel: Any, memory_bytes: int) -> None:
    with pytest.raises(ValueError, match="entry"):
        kernel.KeyMap(memory_bytes, SECRET)


@both
@pytest.mark.parametrize("size", [0, 15, 17])
def test_hash_key_has_sixteen_bytes(kernel: Any, size: int) -> None:
    with pytest.raises(ValueError, match="hash key"):
        kernel.KeyMap(1_000, bytes(size))


@both
def test_spans_of_another_payload_are_never_read_through(kernel: Any) -> None:
    key_map = kernel.KeyMap(10_000, SECRET)
    data, spans = keys(b"abc", b"def")
    for call in (
        partial(key_map.add_spans, data[:-10], spans, 0),
        partial(key_map.keep_flags, data[:-10], spans, 0),
        partial(key_map.add_spans, data, spans[:-1], 0),
        partial(key_map.add_spans, data, array("i", [0] * 14), 0),
        partial(key_map.add_spans, data, array("q", [0, 0, 0, 0, -1, 1, 0]), 0),
        partial(key_map.add_spans, data, array("q", [0, 0, 0, 0, 1, 2**63 - 1, 0]), 0),
        partial(key_map.keep_flags, data, array("q", [0, 0, 0, 0, 2**63 - 1, 1, 0]), 0),
        partial(key_map.add_spans, data, array("q", [0, 0, -1, 0, 0, 1, 0]), 0),
        partial(key_map.add_spans, data, array("q", [0, 0, 2**31, 0, 0, 1, 0]), 0),
        partial(key_map.add_spans, data, spans, -1),
        partial(key_map.add_spans, data, spans, 2**63 - 1),
    ):
        with pytest.raises(ValueError, match=r"span|base offset"):
            call()
    assert len(key_map) == 0


@both
def test_no_call_keeps_the_buffer(kernel: Any) -> None:
    key_map = kernel.KeyMap(10_000, SECRET)
    frozen, spans = keys(b"abc", b"def")
    data = bytearray(frozen)
    key_map.add_spans(data, spans, 0)
    key_map.keep_flags(data, spans, 0)
    key_map.get(data)
    data.extend(b"grows")
    spans.append(0)


@both
def test_one_map_per_thread(kernel: Any) -> None:
    """The compiled loops run without the GIL; maps share nothing."""
    data, spans = keys(*(b"key-%d" % at for at in range(500)))
    maps = [kernel.KeyMap(100_000, SECRET) for _ in range(4)]

    def fill(key_map: Any) -> None:
        for base_offset in range(0, 5_000, 500):
            key_map.add_spans(data, spans, base_offset)

    threads = [threading.Thread(target=fill, args=(key_map,)) for key_map in maps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(len(key_map), key_map.get(b"key-499")) for key_map in maps] == [(500, 4_999)] * 4


@needs_compiled("keymap")
@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
    ],
)
def test_hash_is_siphash_2_4_with_128_bits(size: int, digest: str) -> None:
    """Vectors published with the reference implementation: key 00..0f, message 00..size-1."""
    kernel: Any = compiled("keymap")
    assert kernel._siphash_of(SECRET, bytes(range(size))).hex() == digest
