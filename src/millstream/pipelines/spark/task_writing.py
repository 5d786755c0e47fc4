"""What one task of a sink does: its rows to the topics, all acknowledged before it reports.

At least once: within an attempt nothing is stored twice (the producer is idempotent), but Spark
may run a task again, and what the attempt before has stored stays. An exactly-once sink is a second
`Delivery`: it takes a transactional producer by `TaskPlace`, asks whether this batch was committed
before, leaves the transaction open, and its message tells the driver what to end.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from millstream.pipelines.option_rules import DeliveryGuarantee
from millstream.pipelines.spark.sink_plan import SinkPlan
from millstream.pipelines.spark.writer_pool import POOL

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """Where in a job a task is: the same when a batch is run again, except for `attempt`."""

    task: int
    attempt: int
    query_id: str | None = None
    """Of a stream; stays over restarts."""
    batch_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWritten(WriterCommitMessage):
    """What a task has stored."""

    place: TaskPlace
    records: dict[str, int] = field(default_factory=dict)
    """By topic."""

    @property
    def record_count(self) -> int:
        return sum(self.records.values())


Delivery = Callable[[SinkPlan, TaskPlace, Iterator[pa.RecordBatch]], TaskWritten]


def task_place() -> TaskPlace:
    """Of the task that runs in this process."""
    context = TaskContext.get()
    if context is None:
        return TaskPlace(task=0, attempt=0)
    batch_id = context.getLocalProperty(_BATCH_ID)
    return TaskPlace(
        task=context.partitionId(),
        attempt=context.attemptNumber(),
        query_id=context.getLocalProperty(_QUERY_ID),
        batch_id=int(batch_id) if batch_id is not None else None,
    )


def write_task(plan: SinkPlan, batches: Iterator[pa.RecordBatch]) -> TaskWritten:
    """Returns when every row is stored; otherwise raises, and some may be."""
    return _DELIVERIES[plan.guarantee](plan, task_place(), batches)


def _at_least_once(
    plan: SinkPlan, place: TaskPlace, batches: Iterator[pa.RecordBatch]
) -> TaskWritten:
    first = next(batches, None)
    if first is None:
        return TaskWritten(place=place)  # no connection for a task without rows
    writer = POOL.take(plan.settings)
    try:
        writer.write(plan.projection.of(first), topic=plan.topic)
        for batch in batches:
            writer.write(plan.projection.of(batch), topic=plan.topic)
        delivered = writer.flush()
    except BaseException:
        writer.abort()
        raise
    POOL.give_back(plan.settings, writer)
    records: dict[str, int] = {}
    for partition, one in delivered.items():
        records[partition.topic] = records.get(partition.topic, 0) + one.records
    return TaskWritten(place=place, records=records)


_DELIVERIES: Final[dict[DeliveryGuarantee, Delivery]] = {
    DeliveryGuarantee.AT_LEAST_ONCE: _at_least_once,
}
"""`write_options` refuses what is not here."""
