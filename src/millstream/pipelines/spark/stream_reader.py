"""`spark.readStream`: decides on the driver where a micro-batch ends.

Spark keeps one reader in a process of its own for as long as a query runs, and calls it at every
trigger; others are created only to be pickled to tasks. So state between triggers lives in the
instance, and everything that a replay needs is in the offsets themselves.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from millstream.client.errors import ClientError
from millstream.model.ids import Offset, TimestampMs
from millstream.pipelines.admission import AdmissionLimits, Positions, TriggerTimes
from millstream.pipelines.byte_estimate import ByteEstimate
from millstream.pipelines.data_loss import ClusterView, check_available_now, survey
from millstream.pipelines.errors import PipelineError
from millstream.pipelines.micro_batch import (
    BatchRules,
    batch_plan,
    initial_offset,
    next_end,
    unresolved_partitions,
)
from millstream.pipelines.offsets_json import EARLIEST_OFFSET, Document, document_from_offsets
from millstream.pipelines.options import stream_read_options
from millstream.pipelines.source_offset import (
    SourceOffset,
    document_from_source_offset,
    source_offset_from_document,
)
from millstream.pipelines.spark.bound_lookup import resolve_bound, start_query
from millstream.pipelines.spark.metadata_lookup import MetadataLookup
from millstream.pipelines.spark.notices import warn_all, warn_of_options
from millstream.pipelines.spark.task_reader import ReadTask, TaskRules
from millstream.runtime.clock import SystemClock

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from millstream.pipelines.spark.byte_samples import ByteSamples
    from millstream.pipelines.spark.group_progress import GroupProgress


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of one streaming query."""

    def __init__(self, options: Mapping[str, str], schema: "StructType") -> None:
        self._options: Final = stream_read_options(options)
        self._rules: Final = TaskRules.of(self._options.read, schema)
        self._lookup: Final = MetadataLookup(self._options.read)
        self._clock: Final = SystemClock()
        self._initial: SourceOffset | None = None
        self._start_failure: Exception | None = None
        self._last_trigger: TimestampMs | None = None
        self._frozen: Positions | None = None
        """The end of an AvailableNow query."""
        self._latest: Positions | None = None
        """Of the last trigger, for the query's progress."""
        self._bytes: Final = self._byte_samples()
        self._progress: Final = self._group_progress()

    # -- parts that few queries use, and that take time to load

    def _byte_samples(self) -> "ByteSamples | None":
        if self._options.limits.max_bytes is None:
            return None
        from millstream.pipelines.spark.byte_samples import ByteSamples

        return ByteSamples()

    def _group_progress(self) -> "GroupProgress | None":
        group_id = self._options.progress_group_id
        if group_id is None:
            return None
        from millstream.pipelines.spark.group_progress import GroupProgress

        return GroupProgress(lambda: self._lookup.client, group_id)

    # -- where to begin

    def initialOffset(self) -> Document:  # noqa: N802
        """Called twice when a query is new, and again when its first batch is replayed.

        Only a new query needs the result. A start that cannot be resolved is therefore raised by
        the first `latestOffset`, which a replay does not call: its end offset has its begin.
        """
        if self._initial is None:
            warn_of_options(self._options.read)
            try:
                self._initial = self._resolved_start()
            except (PipelineError, ClientError) as error:
                self._start_failure = error
                self._initial = SourceOffset(positions={}, is_initial=True)
        return document_from_source_offset(self._initial)

    def _resolved_start(self) -> SourceOffset:
        read = self._options.read
        selection = self._lookup.selection()
        query = start_query(read, selection)
        positions = resolve_bound(self._lookup, query, no_match=read.no_match)
        view = ClusterView(earliest={}, latest={}, topic_ids=selection.topic_ids)
        return initial_offset(positions, view)

    # -- where to end

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Spark supports one limit and passes it back; the options decide which ones apply."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The end of the next batch; `start` itself when there is nothing to do."""
        begin = source_offset_from_document(start)
        if begin.is_initial and self._start_failure is not None:
            raise self._start_failure
        self._note_done(begin)
        view = self._lookup.view(begin)
        self._latest = view.latest
        view = self._cut(view, begin)
        is_unlimited = isinstance(limit, ReadAllAvailable)
        limits = AdmissionLimits() if is_unlimited else self._options.limits
        if self._bytes is not None and limits.max_bytes is not None:
            self._bytes.refresh(self._lookup.client, view, survey(begin, view).begins)
        found = next_end(
            begin,
            view,
            BatchRules(
                limits=limits,
                fail_on_data_loss=self._options.read.fail_on_data_loss,
                is_available_now=self._frozen is not None,
            ),
            TriggerTimes(now=self._now(), last=self._last_trigger),
            estimate=ByteEstimate() if self._bytes is None else self._bytes.estimate,
        )
        self._check_frozen()
        self._last_trigger = found.last_trigger
        warn_all(found.warnings)
        if found.offset != begin:
            return document_from_source_offset(found.offset)
        if self._progress is not None and self._frozen is not None:
            warn_all(self._progress.drain())  # the query and this process end now
        return start

    def _now(self) -> TimestampMs:
        """Monotonic: only differences matter, and the wall clock may jump."""
        return TimestampMs(int(self._clock.monotonic_s() * 1000))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._frozen = self._lookup.view().latest

    def _cut(self, view: ClusterView, begin: SourceOffset) -> ClusterView:
        """Under AvailableNow, limit the view to the end that was fixed at the start."""
        frozen = self._frozen
        if frozen is None:
            return view
        latest = {}
        for partition, offset in view.latest.items():
            stands_at = begin.positions.get(partition)
            end = frozen.get(partition, stands_at)
            if end is not None:
                latest[partition] = Offset(min(offset, max(end, stands_at or 0)))
        return replace(view, latest=latest)

    def _check_frozen(self) -> None:
        """Raise if a log was truncated: the query would end early, with records unread."""
        if self._frozen is not None and self._options.read.fail_on_data_loss:
            check_available_now(frozen=self._frozen, end=self._frozen, latest=self._latest or {})

    def reportLatestOffset(self) -> Document | None:  # noqa: N802
        """For the query's progress."""
        return None if self._latest is None else document_from_offsets(self._latest)

    # -- what to read

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Depends only on the two offsets, so that a replay has the same tasks."""
        begin, finish = source_offset_from_document(start), source_offset_from_document(end)
        unresolved = unresolved_partitions(begin, finish)
        ranges = batch_plan(
            begin,
            finish,
            min_partitions=self._options.read.min_partitions,
            max_records_per_partition=self._options.read.max_records_per_partition,
            earliest=self._lookup.offsets(dict.fromkeys(unresolved, EARLIEST_OFFSET)),
        )
        return [ReadTask(one, finish.topic_ids.get(one.topic)) for one in ranges]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return self._rules.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to release. Spark calls this when it plans the next batch, and not at all when
        there is none; `latestOffset` is called as early, and always.
        """

    def _note_done(self, begin: SourceOffset) -> None:
        """Spark requests the next batch when the previous one is done."""
        if self._progress is not None:
            warn_all(self._progress.note(begin))

    def stop(self) -> None:
        """Nothing to stop: the process ends with the query, and its connections with it."""
