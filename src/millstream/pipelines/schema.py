"""Columns of the source and the sink as plain data: names and types in Spark's short notation.

Spark's own schema objects stay in the shell, which converts a field to a `Column` by its name and
`simpleString()`. Names, order and types are the connector's. Unlike the connector, the source takes
a schema from the user: columns that are left out are neither decoded nor sent to the JVM.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.pipelines.errors import SchemaInvalid

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


class Column(NamedTuple):
    """One column."""

    name: str
    type: str
    is_nullable: bool = True


READ_COLUMNS: Final = (
    Column("key", "binary"),
    Column("value", "binary"),
    Column("topic", "string"),
    Column("partition", "int"),
    Column("offset", "bigint"),
    Column("timestamp", "timestamp"),
    Column("timestampType", "int"),
)
HEADERS_COLUMN: Final = Column("headers", HEADERS_TYPE)

_WRITE_TYPES: Final = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (HEADERS_TYPE,),
    "partition": ("int",),
}
"""In the order in which they are checked."""


class ReadColumn(NamedTuple):
    """A column of the result and what fills it."""

    name: str
    """As the user spells it; Spark's names are case-insensitive."""
    source: str
    """The name in READ_COLUMNS, or `headers`."""
    type: str


class WriteColumn(NamedTuple):
    """A column of the rows to write."""

    position: int
    type: str


class WriteColumns(NamedTuple):
    """The columns of the rows to write; None: not present."""

    value: WriteColumn
    key: WriteColumn | None
    headers: WriteColumn | None
    topic: WriteColumn | None
    """None when the option `topic` is set: the column is ignored then."""
    partition: WriteColumn | None
    ignored: tuple[str, ...]
    """Columns that are not written: worth a warning, the connector is silent."""


def read_columns(*, include_headers: bool) -> tuple[Column, ...]:
    """The source's schema when the user gives none."""
    return (*READ_COLUMNS, HEADERS_COLUMN) if include_headers else READ_COLUMNS


def chosen_columns(requested: Sequence[Column], *, include_headers: bool) -> tuple[ReadColumn, ...]:
    """The user's schema, checked: some of the columns, in any order."""
    known = {column.name.lower(): column for column in read_columns(include_headers=True)}
    chosen: dict[str, ReadColumn] = {}
    for column in requested:
        name = column.name.lower()
        if name not in known:
            names = ", ".join(one.name for one in read_columns(include_headers=include_headers))
            raise SchemaInvalid(f"unknown column '{column.name}'; the columns are {names}")
        if name == HEADERS_COLUMN.name and not include_headers:
            raise SchemaInvalid("column 'headers' needs the option includeHeaders set to true")
        if name in chosen:
            raise SchemaInvalid(f"column '{column.name}' is in the schema twice")
        if _normalized(column.type) != known[name].type:
            raise SchemaInvalid(
                f"column '{column.name}' is {known[name].type}, not {column.type}; convert it in "
                "the query"
            )
        if not column.is_nullable:
            raise SchemaInvalid(f"column '{column.name}' is nullable; leave out NOT NULL")
        chosen[name] = ReadColumn(column.name, known[name].name, known[name].type)
    if not chosen:
        raise SchemaInvalid("the schema has no column")
    return tuple(chosen.values())


def write_columns(schema: Sequence[Column], *, topic_option: str | None) -> WriteColumns:
    """Check the rows to write. Names are compared exactly; the first of equal ones is used."""
    found = {
        name: _write_column(schema, name)
        for name in _WRITE_TYPES
        if name != "topic" or topic_option is None
    }
    if topic_option is None and found["topic"] is None:
        raise SchemaInvalid(
            "the rows have no column 'topic' and the option topic is not set: set one of them"
        )
    value = found["value"]
    if value is None:
        names = ", ".join(one.name for one in schema)
        raise SchemaInvalid(
            f"the rows have no column 'value', which is required; they have {names} (names are "
            "compared exactly)"
        )
    used = {column.position for column in found.values() if column is not None}
    return WriteColumns(
        value=value,
        key=found["key"],
        headers=found["headers"],
        topic=found.get("topic"),
        partition=found["partition"],
        ignored=tuple(one.name for index, one in enumerate(schema) if index not in used),
    )


def _write_column(schema: Sequence[Column], name: str) -> WriteColumn | None:
    for index, column in enumerate(schema):
        if column.name != name:
            continue
        if _normalized(column.type) not in _WRITE_TYPES[name]:
            allowed = " or ".join(_WRITE_TYPES[name])
            raise SchemaInvalid(f"column '{name}' is {column.type}; it must be {allowed}")
        return WriteColumn(index, _normalized(column.type))
    return None


def _normalized(type_name: str) -> str:
    """A type without case, blanks, NOT NULL, length and collation, which do not matter here."""
    text = re.sub(r"\s+not\s+null", "", type_name.lower())
    text = re.sub(r"\b(?:varchar|char)\(\d+\)|\bstring\s+collate\s+\w+", "string", text)
    return re.sub(r"\s+", "", text)
