"""One micro-batch from start to end: the decisions of the streaming source, put together.

`next_end` is `latestOffset`: it sees the cluster and decides where the next batch ends.
`batch_plan` is `partitions(start, end)`: it sees only the two offsets, so that a batch replayed
after a crash is split as it was the first time. Everything that `next_end` looked up is therefore
stored in the end offset (see `source_offset`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from millstream.model.ids import Offset, TimestampMs, TopicId, TopicPartition
from millstream.pipelines.admission import (
    AdmissionLimits,
    Backlog,
    Positions,
    TriggerTimes,
    admit,
)
from millstream.pipelines.byte_estimate import ByteEstimate
from millstream.pipelines.data_loss import ClusterView, judge, survey
from millstream.pipelines.ranges import OffsetRange, split_ranges
from millstream.pipelines.source_offset import SourceOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """The rules of the options and the trigger."""

    limits: AdmissionLimits
    fail_on_data_loss: bool = True
    is_available_now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NextEnd:
    """The decision of one trigger."""

    offset: SourceOffset
    """The start itself when there is nothing to do: Spark then runs no batch."""
    last_trigger: TimestampMs | None
    warnings: tuple[str, ...] = ()


def initial_offset(positions: Positions, view: ClusterView) -> SourceOffset:
    """The offset of a new query, from its resolved start."""
    return SourceOffset(positions=positions, topic_ids=_ids_of(positions, view), is_initial=True)


def next_end(
    start: SourceOffset,
    view: ClusterView,
    rules: BatchRules,
    times: TriggerTimes,
    *,
    estimate: ByteEstimate,
) -> NextEnd:
    """Where the batch that begins at `start` ends. Raises DataLost as `failOnDataLoss` says."""
    found = survey(start, view)
    warnings = judge(found.losses, fail_on_data_loss=rules.fail_on_data_loss)
    readable = {tp: offset for tp, offset in view.latest.items() if tp in found.begins}
    admission = admit(
        rules.limits,
        Backlog(begins=found.begins, latest=readable),
        times,
        estimate=estimate,
        is_available_now=rules.is_available_now,
    )
    if admission.ends is None:
        return NextEnd(
            offset=_unmoved(start), last_trigger=admission.last_trigger, warnings=warnings
        )
    end = _end(start, admission.ends, found.begins, view)
    return NextEnd(offset=end, last_trigger=admission.last_trigger, warnings=warnings)


def unresolved_partitions(start: SourceOffset, end: SourceOffset) -> list[TopicPartition]:
    """Partitions of a batch whose begin is not recorded.

    Only where Spark's connector ended the batch and found new partitions in it: their earliest
    offsets must be looked up, as it would do itself.
    """
    return sorted(tp for tp in end.positions if tp not in end.begins and tp not in start.positions)


def batch_plan(
    start: SourceOffset,
    end: SourceOffset,
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
    earliest: Mapping[TopicPartition, Offset] | None = None,
) -> list[OffsetRange]:
    """The tasks of a batch. `earliest`: of `unresolved_partitions`, if there are any."""
    begins = {**start.positions, **(earliest or {}), **end.begins}
    ranges = [
        OffsetRange(*tp, begins[tp], offset)
        for tp, offset in sorted(end.positions.items())
        if tp in begins
    ]
    return split_ranges(
        ranges,
        min_partitions=min_partitions,
        max_records_per_partition=max_records_per_partition,
    )


def _end(
    start: SourceOffset, ends: Positions, begins: Positions, view: ClusterView
) -> SourceOffset:
    topic_ids = _ids_of(ends, view)
    is_other_topic = any(
        name in start.topic_ids and start.topic_ids[name] != topic_id
        for name, topic_id in topic_ids.items()
    )
    moved = {tp: at for tp, at in begins.items() if start.positions.get(tp) != at}
    if dict(ends) == dict(start.positions) and not moved and not is_other_topic:
        return _unmoved(start)
    kept = dict(begins) if start.is_initial else moved
    return SourceOffset(positions=dict(ends), begins=kept, topic_ids=topic_ids)


def _unmoved(start: SourceOffset) -> SourceOffset:
    """The end of a batch that reads nothing."""
    if not start.is_initial:
        # Spark compares the texts: added or removed extras would make it run an empty batch.
        return start
    # The first batch is run even when it is empty, and its replay may resolve an earlier start.
    return replace(start, begins=dict(start.positions), is_initial=False)


def _ids_of(partitions: Collection[TopicPartition], view: ClusterView) -> dict[str, TopicId]:
    names = {one.topic for one in partitions}
    return {name: topic_id for name, topic_id in view.topic_ids.items() if name in names}
