"""The partitioner gives every row the partition Java's producer would; both twins."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from kits.kernels.kernel_twins import compiled, needs_compiled, plain, twins
from millstream.kernels.column_types import BinaryColumn, RecordColumns
from millstream.kernels.partition_types import RECORD_COST, Int32Column
from millstream.testing import stubs

both = pytest.mark.parametrize("kernel", twins("partitioner"))

JAVA = {
    # As the table in the tests of Kafka's own `Utils.murmur2`.
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def binary(values: Sequence[bytes | None], first: int = 0) -> BinaryColumn:
    """The column as a slice of a longer one, which begins `first` rows earlier."""
    column = pa.array([b"before"] * first + list(values), pa.binary())[first:]
    validity, offsets, data = column.buffers()
    return BinaryColumn(offsets=offsets, data=data or b"", validity=validity, first=column.offset)


def numbers(values: Sequence[int | None], first: int = 0) -> Int32Column:
    column = pa.array([-7] * first + list(values), pa.int32())[first:]
    validity, data = column.buffers()
    return Int32Column(values=data, validity=validity, first=column.offset)


def int32(*values: int) -> "array[int]":
    return array("i", values)


def targets_of(made: bytearray) -> list[int]:
    return memoryview(made).cast("i").tolist()


def positive(key: bytes) -> int:
    return int(aiokafka_murmur2(key)) & 0x7FFFFFFF


@both
@pytest.mark.parametrize("key", JAVA)
def test_murmur2_is_javas(kernel: Any, key: bytes) -> None:
    assert kernel.murmur2(key) == JAVA[key]


@both
@given(key=st.binary(max_size=70))
def test_murmur2_is_aiokafkas(kernel: Any, key: bytes) -> None:
    assert kernel.murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key) & 0xFFFFFFFF


@both
@given(keys=st.lists(st.none() | st.binary(max_size=20), max_size=30), first=st.integers(0, 9))
def test_keys_decide_and_rows_without_are_told(
    kernel: Any, keys: list[bytes | None], first: int
) -> None:
    made, without, wrong = kernel.assign(len(keys), int32(7), keys=binary(keys, first))
    assert targets_of(made) == [-1 if key is None else positive(key) % 7 for key in keys]
    assert (without, wrong) == (keys.count(None), -1)


@both
def test_an_explicit_partition_wins_over_a_key(kernel: Any) -> None:
    made, without, wrong = kernel.assign(
        4, int32(9), explicit=numbers([8, None, 0, None], 3), keys=binary([b"a", b"a", None, None])
    )
    assert targets_of(made) == [8, positive(b"a") % 9, 0, -1]
    assert (without, wrong) == (1, -1)


@both
@pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1, -(2**31)])
def test_the_first_row_with_a_wrong_partition_is_told(kernel: Any, bad: int) -> None:
    _, _, wrong = kernel.assign(4, int32(4), explicit=numbers([3, 0, bad, bad]))
    assert wrong == 2


@both
def test_places_count_through_the_topics(kernel: Any) -> None:
    made, without, _ = kernel.assign(
        5,
        int32(3, 1, 5),
        topics=int32(0, 2, 1, 2, 1),
        explicit=numbers([2, 4, None, None, 0]),
        keys=binary([None, None, b"k", None, None]),
    )
    assert targets_of(made) == [2, 3 + 1 + 4, 3, -1 - 2, 3]
    assert without == 1


@both
def test_rows_stick_to_a_place_until_they_have_the_bytes(kernel: Any) -> None:
    values = [b"x" * 10] * 6
    columns = RecordColumns(
        rows=6,
        timestamps=bytes(48),
        keys=binary([None, b"kk", None, None, None, None], 2),
        values=binary([*values[:5], None], 1),
    )
    made, without, _ = kernel.assign(6, int32(2, 9), topics=int32(0, 1, 0, 0, 1, 0))
    assert without == 6
    row = 10 + RECORD_COST
    assert kernel.stick(made, columns, topic=0, target=1, start=0, bytes_max=row + 1) == (
        3,
        2 * row,
    )
    assert targets_of(made) == [1, -2, 1, -1, -2, -1]
    assert kernel.stick(made, columns, topic=0, target=0, start=3, bytes_max=2**70) == (
        6,
        row + RECORD_COST,
    )
    assert kernel.stick(made, columns, topic=1, target=7, start=0, bytes_max=1) == (2, row + 2)
    assert targets_of(made) == [1, 7, 1, 0, -2, 0]


@both
@given(targets=st.lists(st.integers(0, 6), max_size=60))
def test_rows_are_grouped_in_their_order(kernel: Any, targets: list[int]) -> None:
    selection, bounds = kernel.group(int32(*targets), len(targets), 7)
    rows = memoryview(selection).cast("q").tolist()
    assert rows == sorted(range(len(targets)), key=lambda row: targets[row])
    for target in range(7):
        assert all(targets[row] == target for row in rows[bounds[target] : bounds[target + 1]])
    assert (bounds[0], bounds[7]) == (0, len(targets))


@both
def test_what_does_not_fit_is_refused(kernel: Any) -> None:
    columns = RecordColumns(rows=2, timestamps=bytes(16), keys=None, values=binary([b"a", b"b"]))
    crooked = BinaryColumn(offsets=int32(0, 9, 1), data=b"abc")
    targets = bytearray(int32(-1, -1).tobytes())
    attempts: list[Callable[[], object]] = [
        lambda: kernel.assign(3, int32(2), topics=int32(0, 0)),
        lambda: kernel.assign(1, int32(2), topics=int32(1)),
        lambda: kernel.assign(1, int32(2), topics=int32(-1)),
        lambda: kernel.assign(1, int32(0)),
        lambda: kernel.assign(1, b""),
        lambda: kernel.assign(1, int32(2**31 - 1, 1)),
        lambda: kernel.assign(-1, int32(2)),
        lambda: kernel.assign(2, int32(2), keys=crooked),
        lambda: kernel.assign(2, int32(2), explicit=Int32Column(values=int32(1))),
        lambda: kernel.assign(1, int32(2), explicit=Int32Column(values=int32(1), first=-1)),
        lambda: kernel.assign(9, int32(2), explicit=Int32Column(values=bytes(36), validity=b"a")),
        lambda: kernel.stick(targets, columns, topic=0, target=0, start=3, bytes_max=1),
        lambda: kernel.stick(targets, columns, topic=0, target=-1, start=0, bytes_max=1),
        lambda: kernel.stick(targets, columns, topic=-1, target=1, start=0, bytes_max=1),
        lambda: kernel.stick(bytearray(4), columns, topic=0, target=1, start=0, bytes_max=1),
        lambda: kernel.stick(bytes(8), columns, topic=0, target=1, start=0, bytes_max=1),
        lambda: kernel.group(int32(0, -1), 2, 3),
        lambda: kernel.group(int32(0, 3), 2, 3),
        lambda: kernel.group(int32(0), 2, 3),
        lambda: kernel.group(int32(0), 1, -1),
    ]
    for wrong in attempts:
        with pytest.raises(ValueError, match=r".+"):
            wrong()


@needs_compiled("partitioner")
@given(data=st.data())
def test_the_twins_agree(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 20))
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    topics = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=rows, max_size=rows))
    keys = data.draw(st.lists(st.none() | st.binary(max_size=9), min_size=rows, max_size=rows))
    explicit = data.draw(st.lists(st.none() | st.integers(-1, 5), min_size=rows, max_size=rows))
    kernels: list[Any] = [compiled("partitioner"), plain("partitioner")]
    outcomes = [
        kernel.assign(
            rows,
            int32(*sizes),
            topics=int32(*topics) if rows else b"",
            explicit=numbers(explicit, 3),
            keys=binary(keys, 1),
        )
        for kernel in kernels
    ]
    (made, without, wrong), (other, *numbers_of_other) = outcomes
    assert [without, wrong] == numbers_of_other
    if wrong < 0:
        assert made == other


@needs_compiled("partitioner")
def test_stub_and_twins_agree() -> None:
    assert list(stubs.check(stubs.KERNELS / "partitioner.pyi")) == []
