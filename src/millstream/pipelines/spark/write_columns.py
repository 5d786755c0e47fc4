"""Maps the rows that Spark passes to a sink to the columns that a column writer takes."""

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import StructType

from millstream.pipelines.schema import Column, WriteColumns

if TYPE_CHECKING:
    import pyarrow as pa


class Projection(NamedTuple):
    """Which columns of a batch are written, and under which names.

    They are found by position: a name may occur twice, and the first of them is used.
    """

    positions: tuple[int, ...]
    names: tuple[str, ...]

    def of(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Nothing is copied."""
        columns = [batch.column(position) for position in self.positions]
        return type(batch).from_arrays(columns, names=list(self.names))


def columns_of(schema: StructType) -> tuple[Column, ...]:
    """Spark's schema as names and type names."""
    return tuple(
        Column(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields
    )


def projection_of(columns: WriteColumns) -> Projection:
    """Without the columns that are not written."""
    found = {
        "value": columns.value,
        "key": columns.key,
        "headers": columns.headers,
        "topic": columns.topic,
        "partition": columns.partition,
    }
    there = {name: column.position for name, column in found.items() if column is not None}
    return Projection(tuple(there.values()), tuple(there))
