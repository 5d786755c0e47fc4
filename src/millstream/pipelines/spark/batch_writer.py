"""`df.write.format("millstream")`: rows of a batch query to topics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.pipelines.spark.sink_plan import sink_plan
from millstream.pipelines.spark.task_report import TaskWritten

if TYPE_CHECKING:
    import pyarrow as pa


class BatchWriter(DataSourceArrowWriter):
    """Checks everything in the constructor, on the driver; connects only in a task's `write`."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, is_overwrite: bool
    ) -> None:
        self._plan = sink_plan(options, schema, is_overwrite=is_overwrite)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskWritten:
        """Called in a task."""
        from millstream.pipelines.spark.task_writer import write_task

        return write_task(self._plan, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: every row was acknowledged before its task reported."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: a task failed for good. What was stored stays, as a log has no undo."""
