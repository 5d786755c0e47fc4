"""Rows to be written, as kernels take them, whatever they were made of."""

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from millstream.kernels.column_types import RecordColumns
    from millstream.kernels.partition_types import Int32Column


class Topics(NamedTuple):
    """The topics of the rows."""

    names: list[str]
    indices: "Buffer | None"
    """int32, of each row; None when all rows are of the first."""


class Rows(NamedTuple):
    """A batch as kernels take it."""

    columns: "RecordColumns"
    topics: Topics
    partitions: "Int32Column | None"


class RowBatch(Protocol):
    """A `pyarrow.RecordBatch`, or a `PlainBatch`, as far as the producer looks at it."""

    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def schema(self) -> Any:
        """Has `equals`; batches with equal ones can be put together."""

    def slice(self, start: int, length: int, /) -> "RowBatch":
        """Without a copy."""
