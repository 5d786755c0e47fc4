"""Both twins of each kernel give the same answer, on valid, damaged and random bytes.

The plain twins are separate code, so an answer that both give is wrong only if both are.
"""

import random
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.kernels.kernel_twins import compiled, needs_compiled, plain
from kits.kernels.record_bytes import SIZE_MAX, batch, batch_of, record
from millstream.kernels.errors import MalformedRecords

pytestmark = needs_compiled("batches", "records", "keymap")
examples = settings(max_examples=150, deadline=None)

SECRET = bytes(range(16))
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.one_of(st.integers(0, 1000), st.integers(2**63 - 10, 2**63 - 1))
optional_bytes = st.none() | st.binary(max_size=20)
records_of_any_kind = st.builds(
    record,
    st.integers(-2, 40) | st.integers(-(2**31), 2**31 - 1),
    key=optional_bytes,
    value=optional_bytes,
    timestamp_delta=INT64 | st.integers(-100, 100),
    headers=st.lists(st.tuples(st.binary(max_size=4), optional_bytes), max_size=3),
)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[bytes, int]:
    """Records with increasing offsets, or any, and a count that is mostly theirs."""
    if draw(st.booleans()):
        gaps = draw(st.lists(st.integers(1, 3), max_size=12))
        keys = st.none() | st.sampled_from([b"", b"a", b"b", b"c"])
        chunks = [
            record(sum(gaps[: at + 1]) - gaps[0], key=draw(keys), value=draw(optional_bytes))
            for at in range(len(gaps))
        ]
    else:
        chunks = draw(st.lists(records_of_any_kind, max_size=6))
    count = draw(st.just(len(chunks)) | st.integers(-1, 14) | st.just(2**31 - 1))
    return b"".join(chunks), count


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` cut, flipped, overwritten or left alone."""
    changed = bytearray(data)
    for _ in range(draw(st.integers(0, 3))):
        if not changed:
            break
        at = draw(st.integers(0, len(changed) - 1))
        match draw(st.sampled_from(["flip", "set", "cut", "insert"])):
            case "flip":
                changed[at] ^= 1 << draw(st.integers(0, 7))
            case "set":
                changed[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
            case "cut":
                del changed[at:]
            case _:
                changed[at:at] = draw(st.binary(max_size=5))
    return bytes(changed)


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Several batches, damaged or not."""
    made = [
        batch(
            draw(st.binary(max_size=30)),
            base_offset=draw(OFFSETS | st.just(-1)),
            count=draw(st.integers(-1, 9)),
            last_offset_delta=draw(st.integers(-1, 12) | st.just(2**31 - 1)),
            attributes=draw(st.integers(-(2**15), 2**15 - 1) | st.just(0)),
            leader_epoch=draw(st.integers(-1, 9)),
            max_timestamp=draw(INT64),
            magic=draw(st.sampled_from([2, 2, 2, 2, 2, 1])),
        )
        for _ in range(draw(st.integers(0, 5)))
    ]
    return draw(damaged(b"".join(made)))


def outcome(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result, or what was raised and why; other errors than ValueError fail the test."""
    try:
        return function(*args, **options)
    except MalformedRecords as error:
        return "malformed", error.reason, error.position
    except ValueError:
        return "value error"


def both_outcomes(name: str, function: str, *args: Any, **options: Any) -> Any:
    first = outcome(getattr(compiled(name), function), *args, **options)
    second = outcome(getattr(plain(name), function), *args, **options)
    assert first == second
    return first


@examples
@given(data=logs() | st.binary(max_size=200), check_crc=st.booleans(), margin=st.integers(-3, 3))
def test_walk(data: bytes, check_crc: bool, margin: int) -> None:
    for start, stop in ((0, len(data)), (margin, len(data)), (0, len(data) + margin)):
        both_outcomes("batches", "walk", data, start, stop, check_crc=check_crc, size_max=SIZE_MAX)
    both_outcomes("batches", "walk", data, 0, len(data), check_crc=check_crc, size_max=80 + margin)


@examples
@given(data=logs() | st.binary(max_size=200), offset=INT64 | OFFSETS, stop=st.integers(-1, 400))
def test_find(data: bytes, offset: int, stop: int) -> None:
    for function in ("find_offset", "find_timestamp"):
        both_outcomes("batches", function, data, 0, len(data), offset)
        both_outcomes("batches", function, data, 0, stop, offset)
        both_outcomes("batches", function, data, min(7, len(data)), len(data), offset)


@examples
@given(data=logs(), base_offset=OFFSETS | INT64, epoch=st.integers(-3, 9), time=INT64)
def test_stamps(data: bytes, base_offset: int, epoch: int, time: int) -> None:
    rows, *_ = plain("batches").walk(data, 0, len(data), check_crc=False, size_max=SIZE_MAX)
    after: list[Any] = []
    for kernel in (compiled("batches"), plain("batches")):
        own_data, own_rows = bytearray(data), rows[:]
        results = [
            outcome(getattr(kernel, function), own_data, own_rows, *values)
            for function, values in (
                ("assign_offsets", (base_offset, epoch)),
                ("set_leader_epoch", (epoch,)),
                ("set_append_time", (time,)),
            )
        ]
        after.append((results, own_data, own_rows))
    assert after[0] == after[1]


@examples
@given(
    data=logs(),
    cells=st.lists(st.integers(-2, 130) | INT64, min_size=12, max_size=30),
    base_offset=OFFSETS,
)
def test_stamps_through_wrong_rows(data: bytes, cells: list[int], base_offset: int) -> None:
    after: list[Any] = []
    for kernel in (compiled("batches"), plain("batches")):
        own_data, own_rows = bytearray(data), array("q", cells)
        results = [
            outcome(getattr(kernel, function), own_data, own_rows, *values)
            for function, values in (
                ("assign_offsets", (base_offset, 1)),
                ("set_append_time", (base_offset,)),
            )
        ]
        after.append((results, own_data, own_rows))
    assert after[0] == after[1]


def inspect_and_locate(data: bytes, count: int) -> Any:
    for contiguous in (True, False):
        result = both_outcomes(
            "records", "inspect", data, 0, len(data), count, contiguous=contiguous
        )
    for offset, time in ((0, -(2**63)), (1, 0), (3, 5)):
        both_outcomes(
            "records", "seek", data, 0, len(data), count, offset_min=offset, time_min=time
        )
    located = both_outcomes("records", "locate", data, 0, len(data), count)
    assert isinstance(located, array) == (result[0] == 0)
    return located


@examples
@given(payload=payloads(), picks=st.data())
def test_records(payload: tuple[bytes, int], picks: st.DataObject) -> None:
    data, count = payload
    inspect_and_locate(data, count)
    inspect_and_locate(picks.draw(damaged(data)), count)


@examples
@given(data=st.binary(max_size=60), count=st.integers(-1, 9))
def test_records_of_noise(data: bytes, count: int) -> None:
    inspect_and_locate(data, count)


@examples
@given(payload=payloads(), flags=st.binary(max_size=14), shift=st.integers(0, 3))
def test_retain(payload: tuple[bytes, int], flags: bytes, shift: int) -> None:
    data, count = payload
    spans = outcome(plain("records").locate, data, 0, len(data), count)
    if isinstance(spans, array):
        flags = flags.ljust(count, b"\1")[:count]
        kept = both_outcomes("records", "retain", data, spans, flags)
        assert len(kept) <= len(data)
        both_outcomes("records", "retain", data[: len(data) - shift], spans, flags)


@examples
@given(
    data=st.binary(max_size=30),
    cells=st.lists(st.integers(-2, 33) | INT64, min_size=7, max_size=15),
    flags=st.binary(max_size=3),
    base_offset=OFFSETS,
)
def test_wrong_spans(data: bytes, cells: list[int], flags: bytes, base_offset: int) -> None:
    spans = array("q", cells)
    both_outcomes("records", "retain", data, spans, flags)
    for function in ("add_spans", "keep_flags"):
        results = [
            outcome(getattr(kernel.KeyMap(1_000, SECRET), function), data, spans, base_offset)
            for kernel in (compiled("keymap"), plain("keymap"))
            if kernel is not None
        ]
        assert results[0] == results[1]


@examples
@given(steps=st.lists(st.tuples(payloads(), OFFSETS), max_size=6), slots=st.integers(2, 7))
def test_key_map(steps: list[tuple[tuple[bytes, int], int]], slots: int) -> None:
    maps: list[Any] = [
        kernel.KeyMap(24 * slots, SECRET)
        for kernel in (compiled("keymap"), plain("keymap"))
        if kernel is not None
    ]
    for (data, count), base_offset in steps:
        spans = outcome(plain("records").locate, data, 0, len(data), count)
        if not isinstance(spans, array):
            continue
        for function in ("keep_flags", "add_spans", "keep_flags"):
            first, second = (
                outcome(getattr(each, function), data, spans, base_offset) for each in maps
            )
            assert first == second
        assert len(maps[0]) == len(maps[1])
        for key in (b"", b"a", b"b", b"c", b"d"):
            assert maps[0].get(key) == maps[1].get(key)


def test_every_byte_of_a_batch_set_to_every_value() -> None:
    """Exhaustive where it matters: one batch of two records, each byte, each value."""
    good = batch_of([record(0, key=b"k", headers=[(b"h", None)]), record(1, timestamp_delta=-9)])
    assert (
        both_outcomes("batches", "walk", good, 0, len(good), check_crc=True, size_max=900)[2] == 0
    )
    for at in range(len(good)):
        for value in range(256):
            data = good[:at] + bytes((value,)) + good[at + 1 :]
            for check_crc in (True, False):
                both_outcomes(
                    "batches", "walk", data, 0, len(data), check_crc=check_crc, size_max=900
                )
            if at >= 61:
                inspect_and_locate(data[61:], 2)


@pytest.mark.parametrize("seed", range(8))
def test_long_noise(seed: int) -> None:
    """Replay: pytest tests/property/test_kernels_parity.py -k 'test_long_noise and SEED'."""
    source = random.Random(seed)
    for _ in range(300):
        records = [
            record(at, key=source.randbytes(3), value=source.randbytes(source.choice((0, 90, 300))))
            for at in range(source.randrange(1, 8))
        ]
        data = bytearray(b"".join(records))
        for _ in range(source.randrange(4)):
            data[source.randrange(len(data))] = source.choice((0, 1, 2, 127, 128, 255))
        inspect_and_locate(bytes(data), len(records))
