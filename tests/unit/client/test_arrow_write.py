"""Arrow columns of every kind become records, slices included; what cannot be is said."""

from typing import Any

import pyarrow as pa
import pytest

from kits.kernels.column_batches import parse_batch
from millstream.client.arrow_write import rows_of
from millstream.client.produce.errors import ColumnInvalid, RowInvalid
from millstream.kernels.columns import encode

NOW_MS = 1_700_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def written(batch: pa.RecordBatch, topic: str | None = "t") -> list[Any]:
    """The records that are made of the batch, read by a third party."""
    rows = rows_of(batch, topic=topic, now_ms=NOW_MS)
    return parse_batch(bytes(encode(rows.columns, 0, batch.num_rows)))[1]


def record_batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


TEXTS = ["a", None, "", "dür", "x" * 300, "z"]
KINDS = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.dictionary(pa.int8(), pa.string()),
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("start", [0, 1, 4])
def test_keys_and_values_of_every_kind_and_slices_of_them(kind: pa.DataType, start: int) -> None:
    texts = TEXTS
    column = pa.array(texts, pa.string()).cast(kind) if "bin" not in str(kind) else None
    if column is None:
        column = pa.array([None if one is None else one.encode() for one in texts], kind)
    batch = record_batch(value=column, key=column).slice(start)
    expected = [None if one is None else one.encode() for one in texts[start:]]
    records = written(batch)
    assert [one.value for one in records] == expected
    assert [one.key for one in records] == expected
    assert {one.timestamp_ms for one in records} == {NOW_MS}


def test_strings_are_not_copied() -> None:
    column = pa.array(["abc", "defg"])
    rows = rows_of(record_batch(value=column).slice(1), topic="t", now_ms=0)
    assert rows.columns.values is not None
    data = rows.columns.values.data
    assert isinstance(data, pa.Buffer)
    assert data.address == column.buffers()[2].address
    assert rows.columns.values.first == 1


def test_all_null_and_fixed_size() -> None:
    batch = record_batch(
        value=pa.nulls(2), key=pa.array([b"ab", b"cd"], pa.binary(2)), headers=pa.nulls(2)
    )
    assert [(one.key, one.value, one.headers) for one in written(batch)] == [
        (b"ab", None, ()),
        (b"cd", None, ()),
    ]


@pytest.mark.parametrize("kind", [HEADERS, pa.large_list(HEADERS.value_type)], ids=str)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_headers(kind: pa.DataType, start: int) -> None:
    lists: list[Any] = [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        None,
        [],
        [{"key": "ü", "value": b""}],
    ]
    batch = record_batch(value=pa.array(["v"] * 4), headers=pa.array(lists, kind)).slice(start)
    expected = [tuple((one["key"].encode(), one["value"]) for one in row or []) for row in lists]
    assert [one.headers for one in written(batch)] == expected[start:]


def test_header_values_may_all_be_null() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.null())]))
    column = pa.array([[{"key": "a", "value": None}]], kind)
    (record,) = written(record_batch(value=pa.array(["v"]), headers=column))
    assert record.headers == ((b"a", None),)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([5, None, 7], pa.int64()), [5, NOW_MS, 7]),
        (pa.array([5, None, 7], pa.timestamp("ms")), [5, NOW_MS, 7]),
        (pa.array([5999, None, 7001], pa.timestamp("us", "UTC")), [5, NOW_MS, 7]),
        (pa.array([5, 6, 7], pa.timestamp("s", "Europe/Berlin")), [5000, 6000, 7000]),
        (pa.nulls(3), [NOW_MS] * 3),
    ],
    ids=["int64", "ms", "us", "s", "null"],
)
@pytest.mark.parametrize("start", [0, 1])
def test_times(column: pa.Array, expected: list[int], start: int) -> None:
    batch = record_batch(value=pa.array(["v"] * 3), timestamp=column).slice(start)
    assert [one.timestamp_ms for one in written(batch)] == expected[start:]


def test_topics_are_numbered_as_they_come() -> None:
    batch = record_batch(
        value=pa.array(["v"] * 4), topic=pa.array(["x", "b", "a", "b"], pa.large_string())
    ).slice(1)
    topics = rows_of(batch, topic=None, now_ms=0).topics
    assert topics.names == ["b", "a"]
    assert topics.indices is not None
    assert memoryview(topics.indices).cast("B").cast("i").tolist() == [0, 1, 0]
    assert rows_of(batch, topic="t", now_ms=0).topics == (["t"], None)
    assert rows_of(batch.slice(2), topic=None, now_ms=0).topics == (["b"], None)


VALUE = pa.array(["v", "w", "x"])


@pytest.mark.parametrize(
    ("columns", "error", "told"),
    [
        ({"key": VALUE}, ColumnInvalid, "'value': is missing"),
        ({"value": VALUE, "offset": VALUE}, ColumnInvalid, "'offset'"),
        ({"value": pa.array([1, 2, 3])}, ColumnInvalid, "int64; convert it to string or binary"),
        ({"value": VALUE, "headers": VALUE}, ColumnInvalid, "list<struct<key, value>>"),
        ({"value": VALUE, "partition": VALUE}, ColumnInvalid, "it must be int32"),
        ({"value": VALUE, "partition": pa.array([1, 2, 2**40])}, ColumnInvalid, "partition"),
        ({"value": VALUE, "timestamp": VALUE}, ColumnInvalid, "timestamp"),
        ({"value": VALUE, "timestamp": pa.array([1, -2, 3])}, RowInvalid, "row 1: .*-2 ms"),
        ({"value": VALUE, "topic": pa.array(["a", "b", None])}, RowInvalid, "row 2: has no topic"),
        ({"value": VALUE, "topic": pa.array([1, 2, 3])}, ColumnInvalid, "topic"),
        (
            {"value": VALUE, "headers": pa.array([[{"key": None, "value": b""}]] * 3, HEADERS)},
            ColumnInvalid,
            "null",
        ),
        (
            {"value": VALUE, "headers": pa.array([[None]] * 3, HEADERS)},
            ColumnInvalid,
            "null",
        ),
    ],
)
def test_what_cannot_be_is_said(columns: Any, error: type[Exception], told: str) -> None:
    topic = None if "topic" in columns else "t"
    with pytest.raises(error, match=told):
        rows_of(pa.record_batch(columns), topic=topic, now_ms=0)


def test_a_topic_is_needed() -> None:
    with pytest.raises(ColumnInvalid, match="no topic was given"):
        rows_of(record_batch(value=VALUE), topic=None, now_ms=0)
