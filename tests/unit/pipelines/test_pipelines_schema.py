"""Columns that the Spark source gives and that the sink takes."""

import pytest

from millstream.pipelines.errors import SchemaInvalid
from millstream.pipelines.schema import (
    HEADERS_TYPE,
    Column,
    ReadColumn,
    WriteColumn,
    chosen_columns,
    read_columns,
    write_columns,
)

VALUE = Column("value", "binary")


def test_columns_are_the_connectors() -> None:
    assert [tuple(column) for column in read_columns(include_headers=True)] == [
        ("key", "binary", True),
        ("value", "binary", True),
        ("topic", "string", True),
        ("partition", "int", True),
        ("offset", "bigint", True),
        ("timestamp", "timestamp", True),
        ("timestampType", "int", True),
        ("headers", "array<struct<key:string,value:binary>>", True),
    ]
    assert read_columns(include_headers=False) == read_columns(include_headers=True)[:-1]


def test_a_schema_chooses_columns() -> None:
    asked = [Column("offset", "bigint"), Column("VALUE", "binary")]
    assert chosen_columns(asked, include_headers=False) == (
        ReadColumn("offset", "offset", "bigint"),
        ReadColumn("VALUE", "value", "binary"),
    )
    everything = read_columns(include_headers=True)
    found = chosen_columns(everything, include_headers=True)
    assert [(one.name, one.type) for one in found] == [one[:2] for one in everything]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([Column("values", "binary")], "unknown column 'values'; the columns are key, value"),
        ([Column("value", "string")], "is binary, not string"),
        ([Column("headers", HEADERS_TYPE)], "includeHeaders"),
        ([VALUE, Column("Value", "binary")], "twice"),
        ([Column("value", "binary", is_nullable=False)], "NOT NULL"),
        ([], "no column"),
    ],
)
def test_a_schema_that_no_topic_has(asked: list[Column], told: str) -> None:
    with pytest.raises(SchemaInvalid, match=told):
        chosen_columns(asked, include_headers=False)


def test_rows_to_write() -> None:
    schema = [
        Column("extra", "int"),
        Column("topic", "string"),
        Column("value", "string", is_nullable=False),
        Column("headers", "array<struct<KEY:string, value:binary>>"),
        Column("partition", "int"),
        Column("key", "varchar(5)"),
        Column("Value", "int"),
    ]
    found = write_columns(schema, topic_option=None)
    assert found.value == WriteColumn(2, "string")
    assert found.topic == WriteColumn(1, "string")
    assert found.key == WriteColumn(5, "string")
    assert found.headers == WriteColumn(3, HEADERS_TYPE)
    assert found.partition == WriteColumn(4, "int")
    assert found.ignored == ("extra", "Value")


def test_the_option_overrides_the_column() -> None:
    """Whatever its type is, as in the connector."""
    found = write_columns([VALUE, Column("topic", "int")], topic_option="t")
    assert found.topic is None
    assert found.ignored == ("topic",)
    assert found.key is None


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ([Column("key", "binary")], "no column 'value'"),
        ([Column("VALUE", "binary")], "no column 'value'.*they have VALUE .*exactly"),
        ([Column("value", "int")], "'value' is int; it must be string or binary"),
        ([VALUE, Column("key", "bigint")], "'key' is bigint; it must be string or binary"),
        ([VALUE, Column("partition", "bigint")], "'partition' is bigint; it must be int"),
        ([VALUE, Column("headers", "map<string,binary>")], "'headers' is map<string,binary>"),
    ],
)
def test_rows_that_cannot_be_written(schema: list[Column], told: str) -> None:
    with pytest.raises(SchemaInvalid, match=told):
        write_columns(schema, topic_option="t")


def test_rows_need_a_topic() -> None:
    with pytest.raises(SchemaInvalid, match="option topic is not set"):
        write_columns([VALUE], topic_option=None)
    with pytest.raises(SchemaInvalid, match="'topic' is binary; it must be string"):
        write_columns([VALUE, Column("topic", "binary")], topic_option=None)
