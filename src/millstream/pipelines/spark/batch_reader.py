"""`spark.read`: all offsets are resolved on the driver, before the first task starts."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition

from millstream.model.ids import Offset, TopicPartition
from millstream.pipelines.bounds import AtOffsets, NoMatch
from millstream.pipelines.errors import RangeInvalid
from millstream.pipelines.offsets_json import LATEST_OFFSET
from millstream.pipelines.options import batch_read_options
from millstream.pipelines.ranges import split_ranges
from millstream.pipelines.resolution import batch_ranges
from millstream.pipelines.spark.bound_lookup import end_query, resolve_bound, start_query
from millstream.pipelines.spark.metadata_lookup import MetadataLookup
from millstream.pipelines.spark.notices import warn_of_options
from millstream.pipelines.spark.task_reader import ReadTask, TaskRules

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class BatchReader(DataSourceReader):
    """Created by Spark when it plans a query, and pickled to the tasks."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        self._options: Final = batch_read_options(options)
        self._rules: Final = TaskRules.of(self._options.read, schema)

    def partitions(self) -> list[InputPartition]:
        """One for each task."""
        read = self._options.read
        warn_of_options(read)
        lookup = MetadataLookup(read)
        selection = lookup.selection()
        first = start_query(read, selection)
        last = end_query(self._options.end, selection)
        ends = resolve_bound(lookup, last, no_match=NoMatch.LATEST)
        starts = resolve_bound(lookup, first, no_match=read.no_match)
        self._check_ends(lookup, ends)
        ranges = batch_ranges(starts, ends, at_earliest=first.at_earliest)
        parts = split_ranges(
            ranges,
            min_partitions=read.min_partitions,
            max_records_per_partition=read.max_records_per_partition,
        )
        return [ReadTask(one, selection.topic_ids.get(one.topic)) for one in parts]

    def _check_ends(self, lookup: MetadataLookup, ends: Mapping[TopicPartition, Offset]) -> None:
        """Refuse ends beyond the latest offset: tasks would wait for records yet to be written."""
        if not isinstance(self._options.end, AtOffsets):
            return
        latest = lookup.offsets(dict.fromkeys(ends, LATEST_OFFSET))
        for partition, end in sorted(ends.items()):
            if end > latest[partition]:
                raise RangeInvalid(
                    f"option 'endingOffsets': {partition} ends at offset {end}, beyond its latest "
                    f"offset {latest[partition]}; use -1 for the latest"
                )

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return self._rules.read(partition)
