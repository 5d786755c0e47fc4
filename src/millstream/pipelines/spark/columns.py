"""The source's columns as Spark's types, and the user's schema as a choice of them."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millstream.pipelines.errors import OptionsInvalid, SchemaInvalid
from millstream.pipelines.option_values import OptionTexts
from millstream.pipelines.options import batch_read_options, stream_read_options
from millstream.pipelines.schema import (
    HEADERS_TYPE,
    Column,
    ReadColumn,
    chosen_columns,
    read_columns,
)

_HEADER: Final = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Final[Mapping[str, Callable[[], DataType]]] = {
    "binary": BinaryType,
    "string": StringType,
    "int": IntegerType,
    "bigint": LongType,
    "timestamp": TimestampType,
    HEADERS_TYPE: lambda: ArrayType(_HEADER),
}
_WHAT_TO_READ: Final = ("subscribe", "subscribePattern", "assign")


def source_schema(options: Mapping[str, str]) -> StructType:
    """The schema unless the user gives one.

    Spark calls this when the DataFrame is created, long before it creates a reader: options that
    are wrong for batches and streams alike raise here, at the line of the user's that sets them.
    """
    _check_early(options)
    has_headers = OptionTexts(options).truth("includeHeaders", default=False)
    return StructType(
        [
            StructField(one.name, _TYPES[one.type](), one.is_nullable)
            for one in read_columns(include_headers=has_headers)
        ]
    )


def columns_of(schema: StructType) -> tuple[Column, ...]:
    """Spark's fields as plain data."""
    return tuple(
        Column(one.name, one.dataType.simpleString(), one.nullable) for one in schema.fields
    )


def columns_to_read(schema: StructType, *, include_headers: bool) -> tuple[ReadColumn, ...]:
    """What fills the columns of a schema, the user's or the default one."""
    for one in schema.fields:
        # The short notation leaves out nullability, and Arrow does not convert between them.
        is_alike = one.dataType.simpleString() == HEADERS_TYPE
        if is_alike and one.dataType != ArrayType(_HEADER):
            raise SchemaInvalid(
                f"the elements of column '{one.name}' are nullable; leave out NOT NULL"
            )
    return chosen_columns(columns_of(schema), include_headers=include_headers)


def _check_early(options: Mapping[str, str]) -> None:
    texts = OptionTexts(options)
    if not any(name in texts for name in _WHAT_TO_READ):
        return  # not for reading, perhaps
    try:
        batch_read_options(options)
    except OptionsInvalid as error:
        with suppress(OptionsInvalid):
            stream_read_options(options)
            return
        raise error from None
