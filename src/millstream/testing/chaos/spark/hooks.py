"""The data source under test with hooks: it reports every step, and can be held there.

Registered under a name of its own; everything that is read and written goes through the real one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, InputPartition, WriterCommitMessage

from millstream.pipelines.spark.columns import source_schema
from millstream.pipelines.spark.stream_reader import StreamReader
from millstream.pipelines.spark.stream_writer import StreamWriter
from millstream.pipelines.spark.task_reader import ReadTask
from millstream.pipelines.spark.task_report import TaskWritten
from millstream.testing.chaos.spark.control import Hook
from millstream.testing.chaos.spark.steps import Step

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit
    from pyspark.sql.types import StructType

FORMAT: Final = "millstream-hooked"
CONTROL_OPTION: Final = "hooks.control"
QUERY_OPTION: Final = "hooks.query"

# Reports other than the steps.
STARTED: Final = "initialOffset"
PLAN: Final = "plan"
TASK_READ: Final = "task read"
TASK_WRITES: Final = "task writes"

SECOND: Final = 2
"""The first batch of rows was handed to the writer, the others were not yet."""


class HookedDataSource(DataSource):
    """`format("millstream-hooked")`, with two options that say where to report."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> "StructType":
        return source_schema(self._rest())

    def streamReader(self, schema: "StructType") -> StreamReader:  # noqa: N802
        return HookedReader(self._hook(), self._rest(), schema)

    def streamWriter(  # noqa: N802
        self,
        schema: "StructType",
        overwrite: bool,  # noqa: FBT001
    ) -> StreamWriter:
        del overwrite  # as in the real one
        return HookedWriter(self._hook(), self._rest(), schema)

    def _hook(self) -> Hook:
        return Hook(self.options[CONTROL_OPTION], self.options[QUERY_OPTION])

    def _rest(self) -> dict[str, str]:
        own = {CONTROL_OPTION, QUERY_OPTION}
        return {name: value for name, value in self.options.items() if name.lower() not in own}


class HookedReader(StreamReader):
    """The real reader; on the driver's side in a process that lives as long as the query."""

    def __init__(self, hook: Hook, options: Mapping[str, str], schema: "StructType") -> None:
        super().__init__(options, schema)
        self._hook = hook

    def initialOffset(self) -> Any:  # noqa: N802
        found = super().initialOffset()
        self._hook.report(STARTED, offset=found)
        return found

    def latestOffset(self, start: dict[str, Any], limit: "ReadLimit") -> dict[str, Any]:  # noqa: N802
        self._hook.report(Step.END.value, start=start)
        return super().latestOffset(start, limit)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Called when the batch is in the offset log, and before anything else happens."""
        self._hook.report(Step.LOGGED.value)
        found = super().partitions(start, end)
        self._hook.report(PLAN, end=end, tasks=[repr(one) for one in found])
        return found

    def commit(self, end: dict[str, Any]) -> None:
        self._hook.report(Step.RELEASE.value, end=end)
        super().commit(end)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        identity = task_identity()
        batches = super().read(partition)
        rows, check = 0, 0
        for batch in batches:
            middle = batch.num_rows // 2
            yield batch.slice(0, middle)
            if rows == 0:
                self._hook.report(Step.READING.value, **identity)
            yield batch.slice(middle)
            rows += batch.num_rows
            check = crc32(repr(batch.to_pylist()).encode(), check)
        self._hook.report(Step.READ.value, **identity)
        if isinstance(partition, ReadTask):
            wanted = partition.wanted
            facts = {"partition": wanted.partition, "start": wanted.start, "end": wanted.end}
            self._hook.report(TASK_READ, **identity, **facts, rows=rows, check=check)


class HookedWriter(StreamWriter):
    """The real writer; `write` runs in tasks, `commit` in another process of the driver."""

    def __init__(self, hook: Hook, options: Mapping[str, str], schema: "StructType") -> None:
        super().__init__(options, schema)
        self._hook = hook

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskWritten:
        identity = task_identity()
        self._hook.report(TASK_WRITES, **identity)
        written = super().write(self._report_writes(iterator, identity))
        if written.record_count:
            self._hook.report(Step.WRITTEN.value, **identity)
        return written

    def _report_writes(
        self, batches: "Iterator[pa.RecordBatch]", identity: dict[str, int]
    ) -> "Iterator[pa.RecordBatch]":
        number = 0
        for number, batch in enumerate(batches, start=1):
            if number == SECOND:
                self._hook.report(Step.WRITING.value, **identity)
            yield batch
        if number:
            self._hook.report(Step.UNFLUSHED.value, **identity)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        self._hook.report(Step.REPORTED.value, batch=batchId)
        super().commit(messages, batchId)
        self._hook.report(Step.COMMITTED.value, batch=batchId)


def task_identity() -> dict[str, int]:
    """Batch and task number of the task that runs in this process."""
    context = TaskContext.get()
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if context is None or batch is None:
        return {}
    return {"batch": int(batch), "task": context.partitionId()}
