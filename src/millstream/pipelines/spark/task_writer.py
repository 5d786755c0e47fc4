"""One task of a sink: writes its rows to the topics, all acknowledged before it reports.

At least once: within an attempt nothing is stored twice (the producer is idempotent), but Spark
may run a task again, and what the previous attempt stored stays. An exactly-once sink will be a
second `Delivery`: it takes a transactional producer by `TaskIdentity`, checks whether this batch
was already committed, leaves the transaction open, and its commit message names the transaction
for the driver to end.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from pyspark import TaskContext

from millstream.client.errors import ClientError, RecordTooLarge
from millstream.client.produce.errors import RowInvalid
from millstream.model.invariant import invariant
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.option_rules import DeliveryGuarantee
from millstream.pipelines.spark.sink_plan import SinkPlan
from millstream.pipelines.spark.task_report import TaskIdentity, TaskWritten
from millstream.pipelines.spark.writer_pool import POOL
from millstream.runtime.garbage import freeze_modules

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


class WriteFailed(PipelineError):
    """A task could not write all of its rows; some may be stored."""


Delivery = Callable[[SinkPlan, TaskIdentity, Iterator[pa.RecordBatch]], TaskWritten]


def current_task() -> TaskIdentity:
    """The task that runs in this process."""
    context = TaskContext.get()
    if context is None:
        return TaskIdentity(task=0, attempt=0)
    batch_id = context.getLocalProperty(_BATCH_ID)
    return TaskIdentity(
        task=context.partitionId(),
        attempt=context.attemptNumber(),
        query_id=context.getLocalProperty(_QUERY_ID),
        batch_id=int(batch_id) if batch_id is not None else None,
    )


def write_task(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Returns when every row is stored; otherwise raises, and some may be."""
    written = _DELIVERIES[plan.guarantee](plan, current_task(), batches)
    if TaskContext.get() is not None:
        freeze_modules()  # in a worker of Spark, not in a user's own process
    return written


def _at_least_once(
    plan: SinkPlan, identity: TaskIdentity, batches: Iterator[pa.RecordBatch]
) -> TaskWritten:
    first = next(batches, None)
    if first is None:
        return TaskWritten(identity=identity)  # no connection for a task without rows
    rows = _TaskRows(plan, identity)
    try:
        rows.write(first)
        for batch in batches:
            rows.write(batch)
        records = rows.flush()
    except BaseException:
        rows.writer.abort()
        raise
    POOL.give_back(plan.settings, rows.writer)
    return TaskWritten(identity=identity, records=records)


class _TaskRows:
    """The rows of a task that are being written; errors name task and row."""

    def __init__(self, plan: SinkPlan, identity: TaskIdentity) -> None:
        self._plan = plan
        self._identity = identity
        with self._as_write_failed():
            self.writer = POOL.take(plan.settings)
        self._first_write = self.writer.write_count + 1
        self._starts: list[int] = []
        """Rows of the task before each write."""
        self._row_count = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._starts.append(self._row_count)
        with self._as_write_failed():
            self.writer.write(self._plan.projection.of(batch), topic=self._plan.topic)
        self._row_count += batch.num_rows

    def flush(self) -> dict[str, int]:
        """Records stored, by topic."""
        with self._as_write_failed():
            delivered = self.writer.flush()
        records: dict[str, int] = {}
        for partition, one in delivered.items():
            records[partition.topic] = records.get(partition.topic, 0) + one.records
        invariant(
            sum(records.values()) == self._row_count,
            "a task reports rows that were not acknowledged",
            rows=self._row_count,
            records=records,
        )
        return records

    @contextmanager
    def _as_write_failed(self) -> Iterator[None]:
        try:
            yield
        except ClientError as error:
            row = self._row_of(error)
            where = f"row {row} of task" if row is not None else "task"
            notes = "; ".join(["", *getattr(error, "__notes__", ())])
            # The traceback through the client's loop would hide the one line that matters.
            why = error.why if isinstance(error, RowInvalid) else error
            raise WriteFailed(f"{where} {self._identity.task}: {why}{notes}") from None

    def _row_of(self, error: ClientError) -> int | None:
        """The number of the faulty row in the task."""
        if isinstance(error, RowInvalid):
            return self._starts[-1] + error.row
        found = error.write_and_row if isinstance(error, RecordTooLarge) else None
        if found is None or not 0 <= found[0] - self._first_write < len(self._starts):
            return None
        return self._starts[found[0] - self._first_write] + found[1]


_DELIVERIES: Final[dict[DeliveryGuarantee, Delivery]] = {
    DeliveryGuarantee.AT_LEAST_ONCE: _at_least_once,
}
"""`write_options` refuses other guarantees."""
