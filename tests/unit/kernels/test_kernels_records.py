"""Single records checked, located and filtered, on known bytes; every test runs on both twins."""

import tracemalloc
from array import array
from functools import partial
from typing import Any

import pytest

from kits.kernels.kernel_twins import twins
from kits.kernels.record_bytes import record, varint
from millstream.kernels.errors import MalformedRecords, Reason

both = pytest.mark.parametrize("kernel", twins("records"))

NOTHING = (0, 0, -1, 0)


def inspected(kernel: Any, data: bytes, count: int, *, contiguous: bool = True) -> tuple[int, ...]:
    result: tuple[int, ...] = kernel.inspect(data, 0, len(data), count, contiguous=contiguous)
    return result


def located_reason(kernel: Any, data: bytes, count: int) -> Reason:
    with pytest.raises(MalformedRecords) as caught:
        kernel.locate(data, 0, len(data), count)
    return caught.value.reason


def framed(body: bytes) -> bytes:
    return varint(len(body)) + body


@both
def test_inspect_gives_times_and_null_keys(kernel: Any) -> None:
    records = [
        record(0, key=b"a", timestamp_delta=5),
        record(1, timestamp_delta=-7, headers=[(b"h", b"v"), (b"", None)]),
        record(2, key=b"", value=None, timestamp_delta=900),
        record(3, timestamp_delta=900),
    ]
    data = b"".join(records)
    assert inspected(kernel, data, 4) == (0, -7, 900, 2, 2)
    assert kernel.inspect(b"xx" + data + b"y", 2, len(data) + 2, 4, contiguous=True)[0] == 0


@both
def test_inspect_reads_extreme_numbers(kernel: Any) -> None:
    data = record(0, timestamp_delta=-(2**63)) + record(2**31 - 1, timestamp_delta=2**63 - 1)
    assert inspected(kernel, data, 2, contiguous=False) == ((0, -(2**63), 2**63 - 1, 2**31 - 1, 2))


@both
def test_inspect_of_no_record(kernel: Any) -> None:
    assert inspected(kernel, b"", 0) == (Reason.NONE, *NOTHING)
    assert inspected(kernel, b"\0", 0) == (Reason.COUNT, *NOTHING)
    assert inspected(kernel, b"", 1) == (Reason.COUNT, *NOTHING)
    assert inspected(kernel, b"", -1) == (Reason.COUNT, *NOTHING)


@both
def test_offsets_contiguous_or_increasing(kernel: Any) -> None:
    gap = record(0) + record(2)
    assert inspected(kernel, gap, 2) == (Reason.OFFSETS, *NOTHING)
    assert inspected(kernel, gap, 2, contiguous=False)[0] == Reason.NONE
    for wrong in (record(1) + record(1), record(1) + record(0), record(-1) + record(0)):
        assert inspected(kernel, wrong, 2, contiguous=False) == (Reason.OFFSETS, *NOTHING)
        assert located_reason(kernel, wrong, 2) is Reason.OFFSETS
    assert inspected(kernel, record(1), 1) == (Reason.OFFSETS, *NOTHING)


@both
@pytest.mark.parametrize("count", [-1, 0, 1, 3, 4, 1_000, 2**31 - 1])
def test_count_must_be_what_the_batch_holds(kernel: Any, count: int) -> None:
    data = record(0) + record(1)
    assert inspected(kernel, data, count) == (Reason.COUNT, *NOTHING)
    assert located_reason(kernel, data, count) is Reason.COUNT


WRONG_RECORDS = {
    "empty": framed(b""),
    "attributes only": framed(b"\0"),
    "negative length": varint(-1) + record(0)[1:],
    "length beyond the payload": varint(60) + record(0)[1:],
    "byte left in the record": framed(record(0)[1:] + b"\0"),
    "six-byte length": b"\x80\x80\x80\x80\x80\0" + record(0),
    "six-byte offset delta": framed(b"\0\0" + b"\x80\x80\x80\x80\x80\0" + b"\1\1\0"),
    "eleven-byte timestamp": framed(b"\0" + b"\x80" * 10 + b"\0" + b"\0\1\1\0"),
    "key length -2": framed(b"\0\0\0" + varint(-2) + b"\1\0"),
    "value length -2": framed(b"\0\0\0\1" + varint(-2) + b"\0"),
    "key beyond the record": framed(b"\0\0\0" + varint(9) + b"abc\1\0"),
    "value beyond the record": framed(b"\0\0\0\1" + varint(9) + b"abc\0"),
    "largest key length": framed(b"\0\0\0" + varint(2**31 - 1) + b"\1\0"),
    "negative header count": framed(b"\0\0\0\1\1" + varint(-1)),
    "header count beyond the record": framed(b"\0\0\0\1\1" + varint(2**31 - 1) + b"\0\1"),
    "header missing": framed(b"\0\0\0\1\1" + varint(2) + b"\0\1"),
    "null header name": framed(b"\0\0\0\1\1" + varint(1) + b"\1\1"),
    "header value beyond the record": framed(b"\0\0\0\1\1" + varint(1) + b"\0" + varint(5) + b"ab"),
    "no header count": framed(b"\0\0\0\1\1"),
}


@both
@pytest.mark.parametrize("wrong", WRONG_RECORDS.values(), ids=WRONG_RECORDS.keys())
def test_wrong_record_bytes_are_refused(kernel: Any, wrong: bytes) -> None:
    """The bytes behind the record would make its lengths plausible: they are not its own."""
    assert inspected(kernel, wrong, 1) == (Reason.RECORD, *NOTHING)
    buffer = wrong + bytes(200)
    result = kernel.inspect(buffer, 0, len(wrong), 1, contiguous=True)
    assert result == (Reason.RECORD, *NOTHING)
    after_good = record(0) + wrong
    with pytest.raises(MalformedRecords) as caught:
        kernel.locate(after_good + record(1), 0, len(after_good) + len(record(1)), 3)
    assert caught.value.reason is Reason.RECORD
    assert caught.value.position == len(record(0))


@both
def test_longest_allowed_varints(kernel: Any) -> None:
    """Not the shortest form, but within Kafka's bounds; bits beyond 32 or 64 are dropped."""
    five, ten = b"\x80\x80\x80\x80\x70", b"\x82" + b"\x80" * 8 + b"\x7e"
    data = framed(b"\0" + ten + five + b"\x81\x80\x80\x80\x00" + b"\1\0")
    assert inspected(kernel, data, 1) == (0, 1, 1, 0, 1)


@both
@pytest.mark.parametrize("cut", range(len(record(0, key=b"key", headers=[(b"h", b"v")]))))
def test_every_truncation_is_refused(kernel: Any, cut: int) -> None:
    data = record(0, key=b"key", headers=[(b"h", b"v")])[:cut]
    assert inspected(kernel, data, 1)[0] == (Reason.RECORD if cut else Reason.COUNT)


@both
def test_locate_gives_every_field(kernel: Any) -> None:
    first = record(0, key=b"key", value=b"12345", timestamp_delta=-3)
    second = record(4, key=None, value=None, headers=[(b"name", b"data")])
    third = record(5, key=b"", value=b"")
    data = b"pre" + first + second + third
    spans = kernel.locate(data, 3, len(data), 3)
    assert spans.typecode == "q"
    middle, end = 3 + len(first), 3 + len(first) + len(second)
    assert list(spans) == [
        *[3, middle, 0, -3, data.index(b"key"), 3, 5],
        *[middle, end, 4, 0, -1, -1, -1],
        *[end, len(data), 5, 0, end + 5, 0, 0],
    ]
    assert spans[kernel.SPAN_FIELDS + kernel.OFFSET_DELTA] == 4
    assert spans[kernel.TIMESTAMP_DELTA] == -3
    assert data[spans[kernel.KEY_START] :][: spans[kernel.KEY_BYTES]] == b"key"
    assert spans[kernel.VALUE_BYTES] == 5
    assert data[spans[kernel.START] : spans[kernel.STOP]] == first


@both
def test_locate_of_nothing(kernel: Any) -> None:
    assert kernel.locate(b"", 0, 0, 0) == array("q")


@both
def test_locate_never_allocates_what_a_count_claims(kernel: Any) -> None:
    data = record(0) * 3
    tracemalloc.start()
    try:
        assert located_reason(kernel, data, 2**31 - 1) is Reason.COUNT
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@both
def test_retain_joins_the_kept_records(kernel: Any) -> None:
    records = [record(at, key=b"%d" % at, value=bytes(at)) for at in range(6)]
    data = b"".join(records)
    spans = kernel.locate(data, 0, len(data), 6)
    assert kernel.retain(data, spans, b"\1\0\3\2\0\1") == b"".join(
        records[at] for at in (0, 2, 3, 5)
    )
    assert kernel.retain(memoryview(data), spans, bytearray(6)) == b""
    assert kernel.retain(data, spans, b"\1" * 6) == data
    assert kernel.retain(b"", array("q"), b"") == b""


@both
def test_retain_refuses_spans_of_another_payload(kernel: Any) -> None:
    data = record(0) + record(1)
    spans = kernel.locate(data, 0, len(data), 2)
    backwards = spans[kernel.SPAN_FIELDS :] + spans[: kernel.SPAN_FIELDS]
    for call in (
        partial(kernel.retain, data[:-1], spans, b"\0\1"),
        partial(kernel.retain, data, spans, b"\1"),
        partial(kernel.retain, data, spans, b"\1\1\1"),
        partial(kernel.retain, data, spans[:-1], b"\1\1"),
        partial(kernel.retain, data, array("i", [0] * 14), b"\1\1"),
        partial(kernel.retain, data, backwards, b"\1\1"),
        partial(kernel.retain, data, array("q", [-5, 2, 0, 0, 0, 0, 0]), b"\1"),
        partial(kernel.retain, data, array("q", [2**63 - 1, 2, 0, 0, 0, 0, 0]), b"\1"),
    ):
        with pytest.raises(ValueError, match=r"span|flags"):
            call()


@both
@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (3, 2), (0, 10**6)])
def test_wrong_range_is_the_callers_error(kernel: Any, start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="range"):
        kernel.inspect(record(0), start, stop, 1, contiguous=True)
    with pytest.raises(ValueError, match="range"):
        kernel.locate(record(0), start, stop, 1)


@both
def test_no_call_keeps_the_buffer(kernel: Any) -> None:
    data = bytearray(record(0) + record(1))
    spans = kernel.locate(data, 0, len(data), 2)
    kernel.inspect(data, 0, len(data), 2, contiguous=True)
    kernel.retain(data, spans, data[:2])
    for call in (
        partial(kernel.locate, data, 0, len(data), 1),
        partial(kernel.locate, data, 1, 0, 1),
        partial(kernel.retain, data, spans, data[:1]),
    ):
        with pytest.raises(ValueError, match=r"number|range|flags"):
            call()
    data.extend(b"grows")
    spans.append(0)


def test_builder_matches_a_record_written_by_hand() -> None:
    by_hand = bytes.fromhex("1a 00 04 02 02 6b 04 7676 02 02 68 02 78")
    built = record(1, timestamp_delta=2, key=b"k", value=b"vv", headers=[(b"h", b"x")])
    assert built == by_hand


# -- seek


def sought(
    kernel: Any, data: bytes, count: int, *, offset: int = 0, time: int = -(2**63)
) -> tuple[int, int, int, int] | None:
    found: tuple[int, int, int, int] | None = kernel.seek(
        data, 0, len(data), count, offset_min=offset, time_min=time
    )
    return found


@both
def test_seek_finds_the_first_record_that_reaches_both(kernel: Any) -> None:
    first, second, third = (
        record(0, timestamp_delta=50),
        record(4, timestamp_delta=-7, headers=[(b"h", b"v")]),
        record(9, key=b"", value=None, timestamp_delta=60),
    )
    data = first + second + third
    assert sought(kernel, data, 3) == (0, 0, 0, 50)
    assert sought(kernel, data, 3, offset=1) == (1, len(first), 4, -7)
    assert sought(kernel, data, 3, offset=1, time=0) == (2, len(first + second), 9, 60)
    assert sought(kernel, data, 3, time=60) == (2, len(first + second), 9, 60)
    assert sought(kernel, data, 3, time=61) is None
    assert sought(kernel, data, 3, offset=10) is None
    assert sought(kernel, data, 2, time=60) is None
    assert sought(kernel, data, 9, time=61) is None
    assert sought(kernel, b"", 3) is None
    assert sought(kernel, data, -1) is None
    inside = kernel.seek(b"xx" + data + b"y", 2, len(data) + 2, 3, offset_min=1, time_min=-9)
    assert inside == (1, len(first) + 2, 4, -7)


@both
def test_seek_reads_no_further_than_it_must(kernel: Any) -> None:
    data = record(0, timestamp_delta=5) + b"\xff\xff"
    assert sought(kernel, data, 2) == (0, 0, 0, 5)
    with pytest.raises(MalformedRecords) as caught:
        sought(kernel, data, 2, time=6)
    assert (caught.value.reason, caught.value.position) == (Reason.RECORD, len(data) - 2)
    with pytest.raises(ValueError, match="outside the payload"):
        kernel.seek(data, 0, len(data) + 1, 1, offset_min=0, time_min=0)
