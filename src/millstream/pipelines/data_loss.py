"""Records that a query should have read and cannot: what happened, and what to do about it.

`failOnDataLoss` decides: true stops the query with `DataLost`, false continues with a warning at
the next readable offset. Findings carry the connector's condition names, so that runbooks written
for it still match; TOPIC_RECREATED is ours, because the connector does not notice a topic that was
deleted and created again once the new one has grown past the old position.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from millstream.model.ids import Offset, TopicId, TopicPartition
from millstream.pipelines.admission import Positions
from millstream.pipelines.errors import DataLost, RangeInvalid
from millstream.pipelines.ranges import OffsetRange
from millstream.pipelines.source_offset import SourceOffset, text_from_topic_id


class LossKind(Enum):
    """Why records are missing."""

    PARTITIONS_DELETED = "PARTITIONS_DELETED"
    TOPIC_RECREATED = "TOPIC_RECREATED"
    START_OFFSET_RESET = "START_OFFSET_RESET"
    PARTITION_OFFSET_CHANGED = "PARTITION_OFFSET_CHANGED"
    INITIAL_OFFSET_NOT_FOUND = "INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"
    ADDED_PARTITION_AGED = "ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"
    COULD_NOT_READ_OFFSET_RANGE = "COULD_NOT_READ_OFFSET_RANGE"


@dataclass(frozen=True, slots=True)
class Loss:
    """One finding."""

    kind: LossKind
    text: str

    def __str__(self) -> str:
        return f"[KAFKA_DATA_LOSS.{self.kind.value}] {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One snapshot of the cluster. `latest` is the end that the isolation level allows to read."""

    earliest: Positions
    latest: Positions
    topic_ids: Mapping[str, TopicId] = field(default_factory=dict)
    """Topics without an entry have no id (old brokers); their recreation cannot be detected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Where to read from, after comparing the query's position with the cluster."""

    begins: Positions
    """For every partition to read."""
    losses: tuple[Loss, ...]


def survey(start: SourceOffset, view: ClusterView) -> Survey:
    """Compare the query's position with what the cluster has."""
    recreated = _recreated_topics(start, view)
    losses = [
        *_losses_of_recreation(recreated, start),
        *_losses_of_deletion(start, view, recreated),
    ]
    begins = {}
    for partition in sorted(view.latest):
        position = None if partition.topic in recreated else start.positions.get(partition)
        is_known = partition in start.positions
        begin, loss = _begin_of(partition, position, view, is_added=not is_known)
        losses += [] if loss is None else [loss]
        if begin is not None:
            begins[partition] = begin
    return Survey(begins=begins, losses=tuple(losses))


def judge(losses: Iterable[Loss], *, fail_on_data_loss: bool) -> tuple[str, ...]:
    """Raise DataLost, or return the warnings to log."""
    texts = [str(loss) for loss in losses]
    if texts and fail_on_data_loss:
        raise DataLost(
            "some records are no longer available: "
            + " ".join(texts)
            + " To continue without them set the option failOnDataLoss to false."
        )
    return tuple(
        f"{one} The query continues, because failOnDataLoss is false; records may be missing."
        for one in texts
    )


def behind(start: SourceOffset, latest: Positions) -> list[TopicPartition]:
    """Partitions whose latest offset is below the query's position.

    A newly elected leader may report this for a moment, so the shell retries (as often as
    `fetchOffset.numRetries` says) before it concludes that records are lost.
    """
    return sorted(tp for tp, end in latest.items() if end < start.positions.get(tp, 0))


def check_available_now(*, frozen: Positions, end: Positions, latest: Positions) -> None:
    """Under AvailableNow the end is fixed at the first trigger; it must stay readable."""
    if frozen.keys() != end.keys():
        raise RangeInvalid(
            "a batch of an AvailableNow query has other partitions than the query had when it "
            "started; start the query again"
        )
    for partition, offset in sorted(end.items()):
        if offset > frozen[partition]:
            raise RangeInvalid(
                f"{partition}: a batch of an AvailableNow query ends at {offset}, after the end "
                f"{frozen[partition]} that was fixed when it started; start the query again"
            )
        if partition not in latest or latest[partition] < offset:
            there = latest.get(partition, "none")
            raise RangeInvalid(
                f"{partition}: the latest offset ({there}) fell below the end {offset} of a "
                "batch of an AvailableNow query: the topic was deleted, recreated or truncated; "
                "start the query again"
            )


def resume_position(
    wanted: OffsetRange, position: Offset, *, earliest: Offset, latest: Offset
) -> tuple[Offset, Loss | None]:
    """Where a task continues after OFFSET_OUT_OF_RANGE at `position`, or after a gap.

    The result is in [position, wanted.end]; `wanted.end` means that nothing is left. When it equals
    `position` the offset exists after all (a broker had stale limits): retry.
    """
    if earliest <= position < latest:
        return position, None
    resumed = wanted.end if position >= latest else Offset(min(earliest, wanted.end))
    if wanted.starts_at_earliest and position == wanted.start and position < earliest:
        return resumed, None
    text = (
        f"Offsets [{position}, {resumed}) of {wanted.topic_partition} could not be read: the "
        f"partition has [{earliest}, {latest})."
    )
    return resumed, Loss(LossKind.COULD_NOT_READ_OFFSET_RANGE, text)


def is_gap_lost(*, position: Offset, next_offset: Offset, log_start: Offset) -> bool:
    """Whether records in [position, next_offset) expired, rather than never being visible.

    Compaction, aborted transactions and markers leave gaps that are no loss; but when the log
    starts after `position`, retention has removed records. Every fetch response has the log start
    offset.
    """
    return next_offset > position and log_start > position


def _recreated_topics(start: SourceOffset, view: ClusterView) -> dict[str, tuple[TopicId, TopicId]]:
    ids = ((name, known, view.topic_ids.get(name)) for name, known in start.topic_ids.items())
    return {name: (known, now) for name, known, now in ids if now is not None and known != now}


def _losses_of_recreation(
    recreated: Mapping[str, tuple[TopicId, TopicId]], start: SourceOffset
) -> list[Loss]:
    losses = []
    for topic, (before, now) in sorted(recreated.items()):
        stood = {
            tp.partition: at for tp, at in sorted(start.positions.items()) if tp.topic == topic
        }
        text = (
            f"Topic {topic} was deleted and created again (id {text_from_topic_id(before)}, now "
            f"{text_from_topic_id(now)}): unread records of the old one, after offsets "
            f"{stood}, are lost; the new one is read from its earliest offsets."
        )
        losses.append(Loss(LossKind.TOPIC_RECREATED, text))
    return losses


def _losses_of_deletion(
    start: SourceOffset, view: ClusterView, recreated: Mapping[str, object]
) -> list[Loss]:
    gone = sorted(tp for tp in start.positions if tp not in view.latest)
    gone = [tp for tp in gone if tp.topic not in recreated]
    if not gone:
        return []
    names = ", ".join(map(str, gone))
    text = f"Partitions {names} have been deleted, or are no longer selected by the options."
    return [Loss(LossKind.PARTITIONS_DELETED, text)]


def _begin_of(
    partition: TopicPartition, position: Offset | None, view: ClusterView, *, is_added: bool
) -> tuple[Offset | None, Loss | None]:
    """Where to begin, and what is lost by it. `position` is None for a new partition."""
    earliest, latest = view.earliest.get(partition), view.latest[partition]
    if position is None:
        return _begin_of_new(partition, earliest, is_added=is_added)
    if latest < position:
        text = (
            f"The latest offset of {partition} is {latest}, below the query's position "
            f"{position}: startingOffsets was set too high, or the topic was recreated, or the "
            "partition was truncated by an unclean leader election."
        )
        return latest, Loss(LossKind.PARTITION_OFFSET_CHANGED, text)
    if earliest is not None and position < earliest:
        text = f"{partition} should continue at offset {position}, but now begins at {earliest}."
        return Offset(min(earliest, latest)), Loss(LossKind.START_OFFSET_RESET, text)
    return position, None


def _begin_of_new(
    partition: TopicPartition, earliest: Offset | None, *, is_added: bool
) -> tuple[Offset | None, Loss | None]:
    if earliest is None:
        text = f"{partition} was added, and deleted before its earliest offset was found."
        return None, Loss(LossKind.INITIAL_OFFSET_NOT_FOUND, text)
    if is_added and earliest != 0:
        text = f"{partition} was added and begins at offset {earliest} instead of 0."
        return earliest, Loss(LossKind.ADDED_PARTITION_AGED, text)
    return earliest, None
