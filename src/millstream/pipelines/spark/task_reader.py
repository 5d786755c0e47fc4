"""A task of the source: reads one range of one partition as Arrow batches of Spark's schema.

Batch and stream share it. The client does the work: it decodes here, in the task's thread, while
the next responses are in flight. The task adds the decision what to do about lost records, which
only it can notice: between planning and reading there can be hours.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from millstream.client.blocking import BlockingClient, client_for
from millstream.client.errors import (
    ClientError,
    DeadlinePassed,
    LogTruncated,
    OffsetOutOfRange,
    TopicRecreated,
    TopicUnknown,
)
from millstream.client.fetch.chunks import ReadRange
from millstream.client.fetch.options import ReadOptions as ClientReadOptions
from millstream.client.offsets import EARLIEST, LATEST
from millstream.model.ids import Offset, TopicId
from millstream.model.limits import MIB
from millstream.pipelines.data_loss import Loss, LossKind, judge, resume_position
from millstream.pipelines.errors import ReadStalled
from millstream.pipelines.options import ReadOptions
from millstream.pipelines.ranges import OffsetRange
from millstream.pipelines.schema import ReadColumn
from millstream.pipelines.spark.columns import columns_to_read
from millstream.pipelines.spark.notices import client_settings, warn_all
from millstream.runtime.garbage import freeze_modules

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_FETCH_BYTES: Final = 4 * MIB
"""Bytes that a task fetches at once, unless `kafka.max.partition.fetch.bytes` is set: a task reads
a single partition, so Kafka's 1 MiB would be a small response. For records of 1 KB it costs a third
more CPU than this, and makes Arrow batches of 1 000 rows, which Spark processes slowly."""
_FETCH_BYTES_KEY: Final = "max.partition.fetch.bytes"

_TRIES_WITHOUT_PROGRESS_MAX: Final = 3
"""A broker may have stale limits for a moment; one that keeps contradicting itself is an error."""


class ReadTask(InputPartition):
    """A range for a task. Without any, Spark passes an InputPartition of its own."""

    def __init__(self, wanted: OffsetRange, topic_id: TopicId | None) -> None:
        super().__init__(None)
        self.wanted = wanted
        self.topic_id = topic_id
        """The topic that the offsets belong to; None where brokers are too old for topic ids."""

    def __repr__(self) -> str:
        one = self.wanted
        return f"ReadTask({one.topic_partition} [{one.start}, {one.end}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRules:
    """What every task of a query needs; pickled to the workers."""

    client_settings: Mapping[str, str]
    columns: tuple[ReadColumn, ...]
    schema: "StructType"
    fail_on_data_loss: bool
    poll_timeout_ms: int

    @classmethod
    def of(cls, options: ReadOptions, schema: "StructType") -> "TaskRules":
        return cls(
            client_settings=client_settings(options),
            columns=columns_to_read(schema, include_headers=options.include_headers),
            schema=schema,
            fail_on_data_loss=options.fail_on_data_loss,
            poll_timeout_ms=options.poll_timeout_ms,
        )

    @property
    def client_options(self) -> ClientReadOptions:
        is_set = _FETCH_BYTES_KEY in self.client_settings
        return ClientReadOptions(
            timeout_s=self.poll_timeout_ms / 1000,
            partition_bytes_max=None if is_set else _FETCH_BYTES,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """All records of a task's range."""
        if not isinstance(partition, ReadTask):
            return iter(())
        return _RangeReader(self, partition).batches()


class _RangeReader:
    """Reads one range to its end, across errors that it can recover from."""

    def __init__(self, rules: TaskRules, task: ReadTask) -> None:
        self._rules = rules
        self._wanted = task.wanted
        self._topic_id = task.topic_id
        self._client: BlockingClient = client_for(rules.client_settings)
        self._fit = _Fit(rules)
        self._tries = 0

    def batches(self) -> Iterator[pa.RecordBatch]:
        position, end = self._wanted.start, self._wanted.end
        partition = self._wanted.topic_partition
        options = self._rules.client_options
        while position < end:
            wanted = ReadRange(partition, position, end, self._topic_id)
            reading = self._client.read_many([wanted], columns=self._fit.sources, options=options)
            try:
                with reading:
                    for one in reading:
                        yield self._fit.fitted(one.batch)
                if TaskContext.get() is not None:
                    freeze_modules()  # in a worker of Spark, not in a user's own process
                return
            except ClientError as error:
                reached = reading.positions[partition]
                position = self._position_after(error, reached, has_moved=reached > position)

    def _position_after(self, error: ClientError, position: Offset, *, has_moved: bool) -> Offset:
        """Where to continue; raises errors that cannot be recovered from, or must not."""
        self._tries = 0 if has_moved else self._tries + 1
        if self._tries >= _TRIES_WITHOUT_PROGRESS_MAX:
            raise error
        resumed, loss = self._resumed(error, position)
        if loss is not None:
            warn_all(judge([loss], fail_on_data_loss=self._rules.fail_on_data_loss))
        return resumed

    def _resumed(self, error: ClientError, position: Offset) -> tuple[Offset, Loss | None]:
        wanted = self._wanted
        match error:
            case OffsetOutOfRange(start=int() as earliest, end=int() as latest):
                return resume_position(
                    wanted, position, earliest=Offset(earliest), latest=Offset(latest)
                )
            case TopicRecreated():
                text = f"{error}. {self._unread(position)}"
                return wanted.end, Loss(LossKind.TOPIC_RECREATED, text)
            case TopicUnknown():
                text = f"{wanted.topic_partition} was deleted. {self._unread(position)}"
                return wanted.end, Loss(LossKind.PARTITIONS_DELETED, text)
            case LogTruncated():
                return self._after_cut(position, str(error))
            case DeadlinePassed():
                return self._after_stall(error, position)
        raise error

    def _unread(self, position: Offset) -> str:
        return f"Offsets [{position}, {self._wanted.end}) were not read."

    def _after_cut(self, position: Offset, why: str) -> tuple[Offset, Loss]:
        """Records that were read are lost; at these offsets there are other records now."""
        return position, Loss(LossKind.COULD_NOT_READ_OFFSET_RANGE, f"{why}.")

    def _after_stall(self, error: DeadlinePassed, position: Offset) -> tuple[Offset, Loss | None]:
        """No records within the allowed time: does the log end before the range?"""
        partition = self._wanted.topic_partition
        earliest = self._client.list_offsets({partition: EARLIEST})[partition].offset
        latest = self._client.list_offsets({partition: LATEST})[partition].offset
        if earliest is None or latest is None or position < latest:
            raise ReadStalled(str(partition), position, self._rules.poll_timeout_ms) from error
        return resume_position(self._wanted, position, earliest=earliest, latest=latest)


class _Fit:
    """The client's batches under the names and types that Spark compares with.

    They are equal unless the user spelled a name differently, or gave a compatible type; then the
    columns are put under Spark's schema without a copy.
    """

    def __init__(self, rules: TaskRules) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        from millstream.client.fetch.arrow import schema_of

        self.sources = tuple(one.source for one in rules.columns)
        self._schema: pa.Schema = to_arrow_schema(rules.schema, timezone="UTC")
        self._is_equal = schema_of(self.sources).equals(self._schema)

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._is_equal:
            return batch
        arrays = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
