"""From what the options say to offsets: what to ask the brokers, and what their answers mean.

The shell sends `Wanted.lookups` as ListOffsets (the numbers are already the protocol's: a time,
-1 for latest, -2 for earliest) and hands the answers to `settled`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millstream.model.ids import NO_OFFSET, Offset, TopicPartition
from millstream.pipelines.bounds import AtOffsets, AtTimestamp, AtTimestamps, Bound, Edge, NoMatch
from millstream.pipelines.errors import RangeInvalid
from millstream.pipelines.offsets_json import EARLIEST_OFFSET, LATEST_OFFSET
from millstream.pipelines.ranges import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Offsets that are known, and what must be asked for."""

    offsets: Mapping[TopicPartition, Offset]
    lookups: Mapping[TopicPartition, int]
    """Timestamps of ListOffsets."""

    @property
    def at_earliest(self) -> frozenset[TopicPartition]:
        """Partitions for which any offset is right as long as it is the first one there is."""
        return frozenset(tp for tp, asked in self.lookups.items() if asked == EARLIEST_OFFSET)


def wanted(bound: Bound, assigned: Collection[TopicPartition], *, name: str) -> Wanted:
    """What `bound` means for the partitions there are. `name` is its option, for messages."""
    match bound:
        case Edge():
            code = EARLIEST_OFFSET if bound is Edge.EARLIEST else LATEST_OFFSET
            return Wanted(offsets={}, lookups=dict.fromkeys(assigned, code))
        case AtTimestamp(timestamp):
            return Wanted(offsets={}, lookups=dict.fromkeys(assigned, timestamp))
        case AtTimestamps(timestamps):
            _check_complete(timestamps, assigned, name)
            return Wanted(offsets={}, lookups=dict(timestamps))
        case AtOffsets(offsets):
            _check_complete(offsets, assigned, name)
            known = {tp: offset for tp, offset in offsets.items() if offset >= 0}
            return Wanted(
                offsets=known,
                lookups={tp: offset for tp, offset in offsets.items() if offset < 0},
            )


def unmatched(asked: Wanted, answers: Mapping[TopicPartition, Offset]) -> list[TopicPartition]:
    """Partitions without a record as late as asked: the shell asks for their latest offset next."""
    return sorted(tp for tp in asked.lookups if answers[tp] == NO_OFFSET)


def settled(
    asked: Wanted,
    answers: Mapping[TopicPartition, Offset],
    *,
    latest: Mapping[TopicPartition, Offset],
    no_match: NoMatch = NoMatch.LATEST,
) -> dict[TopicPartition, Offset]:
    """The offsets. `latest` has those of `unmatched`; an end is always settled with LATEST."""
    missing = unmatched(asked, answers)
    if missing and no_match is NoMatch.ERROR:
        told = ", ".join(f"{tp} at {asked.lookups[tp]}" for tp in missing[:5])
        raise RangeInvalid(
            f"no record is as late as asked in {len(missing)} partitions ({told}); set "
            "startingOffsetsByTimestampStrategy to latest to start those at their latest offset"
        )
    found = {tp: answers[tp] for tp in asked.lookups}
    return {**asked.offsets, **found, **{tp: latest[tp] for tp in missing}}


def batch_ranges(
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    *,
    at_earliest: Collection[TopicPartition] = (),
) -> list[OffsetRange]:
    """The ranges of a batch query, before they are split for tasks."""
    if starts.keys() != ends.keys():
        raise RangeInvalid(
            "the partitions changed while the query was planned; try again. "
            f"{_difference(starts, ends, 'Only at the start', 'Only at the end')}"
        )
    for partition in sorted(starts):
        start, end = starts[partition], ends[partition]
        if start > end:
            raise RangeInvalid(
                f"{partition} starts at offset {start}, behind its end {end}: the start is beyond "
                "the latest offset, or beyond the end that was asked for (mind times and offsets "
                "used together), or the topic was deleted and created again"
            )
    return [
        OffsetRange(*tp, starts[tp], ends[tp], starts_at_earliest=tp in at_earliest)
        for tp in sorted(starts)
    ]


def check_bounds_fit(start: Bound, end: Bound) -> None:
    """What can be told of a batch before a broker is asked."""
    match start, end:
        case AtOffsets(starts), AtOffsets(ends):
            _check_order(starts, ends, "offset")
        case AtTimestamps(starts), AtTimestamps(ends):
            _check_order(starts, ends, "timestamp")
        case _:
            pass


def _check_order(
    starts: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], kind: str
) -> None:
    if starts.keys() != ends.keys():
        difference = _difference(starts, ends, "Only the start names", "Only the end names")
        raise RangeInvalid(f"start and end name other partitions. {difference}")
    for partition in sorted(starts):
        first, last = starts[partition], ends[partition]
        # Negative ones are earliest and latest: not known yet.
        if 0 <= last < first:
            raise RangeInvalid(
                f"{partition} starts at {kind} {first}, behind its end at {kind} {last}"
            )


def _check_complete(
    given: Collection[TopicPartition], assigned: Collection[TopicPartition], name: str
) -> None:
    if set(given) != set(assigned):
        raise RangeInvalid(
            f"option '{name}' must name every partition that is read and no other (as an "
            f"offset -1 is latest and -2 earliest). "
            f"{_difference(given, assigned, 'Named and not read', 'Not named')}"
        )


def _difference(
    left: Collection[TopicPartition],
    right: Collection[TopicPartition],
    only_left: str,
    only_right: str,
) -> str:
    def told(partitions: set[TopicPartition]) -> str:
        shown = sorted(map(str, partitions))
        return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")

    parts = []
    if extra := set(left) - set(right):
        parts.append(f"{only_left}: {told(extra)}.")
    if missing := set(right) - set(left):
        parts.append(f"{only_right}: {told(missing)}.")
    return " ".join(parts)
