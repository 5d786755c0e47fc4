"""`df.writeStream.format("millstream")`: rows of every micro-batch to topics."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from millstream.pipelines.spark.sink_plan import sink_plan
from millstream.pipelines.spark.task_report import TaskWritten

if TYPE_CHECKING:
    import pyarrow as pa


class StreamWriter(DataSourceStreamArrowWriter):
    """Spark creates one for each micro-batch, and one to commit it, in another process."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._plan = sink_plan(options, schema, is_overwrite=False)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskWritten:
        """Called in a task."""
        from millstream.pipelines.spark.task_writer import write_task

        return write_task(self._plan, iterator)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """On the driver: all rows are stored. An exactly-once sink ends its transactions here."""

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        """On the driver: the batch is run again when the query restarts. What was stored stays."""
