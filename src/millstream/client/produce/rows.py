"""Rows to be written, in the form that kernels take, whatever their source."""

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
    """A batch in the form that kernels take."""

    columns: "RecordColumns"
    topics: Topics
    partitions: "Int32Column | None"


class RowBatch(Protocol):
    """A `pyarrow.RecordBatch`, or a `BytesBatch`, as far as the producer uses it."""

    @property
    def num_rows(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def schema(self) -> Any:
        """Has `equals`; batches with equal schemas can be concatenated."""

    def slice(self, start: int, length: int, /) -> "RowBatch":
        """Without a copy."""
