"""Resolves the bounds of the options to offsets: what to look up, and what the answers mean.

The shell sends `OffsetQuery.lookups` as ListOffsets (the numbers are already the protocol's: a
timestamp, -1 for latest, -2 for earliest) and passes the answers to `resolve_offsets`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from millstream.model.ids import NO_OFFSET, Offset, TopicPartition
from millstream.pipelines.bounds import AtOffsets, AtTimestamp, AtTimestamps, Bound, Edge, NoMatch
from millstream.pipelines.errors import RangeInvalid
from millstream.pipelines.offsets_json import EARLIEST_OFFSET, LATEST_OFFSET
from millstream.pipelines.ranges import OffsetRange


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetQuery:
    """Offsets that are known, and those to look up."""

    offsets: Mapping[TopicPartition, Offset]
    lookups: Mapping[TopicPartition, int]
    """Timestamps of ListOffsets."""

    @property
    def at_earliest(self) -> frozenset[TopicPartition]:
        """Partitions that start at whatever their earliest offset is."""
        return frozenset(tp for tp, query in self.lookups.items() if query == EARLIEST_OFFSET)


def offset_query(bound: Bound, assigned: Collection[TopicPartition], *, name: str) -> OffsetQuery:
    """What to look up for `bound` and these partitions. `name` is its option, for messages."""
    match bound:
        case Edge():
            code = EARLIEST_OFFSET if bound is Edge.EARLIEST else LATEST_OFFSET
            return OffsetQuery(offsets={}, lookups=dict.fromkeys(assigned, code))
        case AtTimestamp(timestamp):
            return OffsetQuery(offsets={}, lookups=dict.fromkeys(assigned, timestamp))
        case AtTimestamps(timestamps):
            _check_complete(timestamps, assigned, name)
            return OffsetQuery(offsets={}, lookups=dict(timestamps))
        case AtOffsets(offsets):
            _check_complete(offsets, assigned, name)
            known = {tp: offset for tp, offset in offsets.items() if offset >= 0}
            return OffsetQuery(
                offsets=known,
                lookups={tp: offset for tp, offset in offsets.items() if offset < 0},
            )


def unmatched(query: OffsetQuery, answers: Mapping[TopicPartition, Offset]) -> list[TopicPartition]:
    """Partitions without a record that late: the shell looks up their latest offset next."""
    return sorted(tp for tp in query.lookups if answers[tp] == NO_OFFSET)


def resolve_offsets(
    query: OffsetQuery,
    answers: Mapping[TopicPartition, Offset],
    *,
    latest: Mapping[TopicPartition, Offset],
    no_match: NoMatch = NoMatch.LATEST,
) -> dict[TopicPartition, Offset]:
    """The offsets. `latest` has those of `unmatched`; an end is always resolved with LATEST."""
    missing = unmatched(query, answers)
    if missing and no_match is NoMatch.ERROR:
        listed = ", ".join(f"{tp} at {query.lookups[tp]}" for tp in missing[:5])
        raise RangeInvalid(
            f"no record is that late in {len(missing)} partitions ({listed}); set "
            "startingOffsetsByTimestampStrategy to latest to start those at their latest offset"
        )
    found = {tp: answers[tp] for tp in query.lookups}
    return {**query.offsets, **found, **{tp: latest[tp] for tp in missing}}


def batch_ranges(
    starts: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    *,
    at_earliest: Collection[TopicPartition] = (),
) -> list[OffsetRange]:
    """The ranges of a batch query, before they are split for tasks."""
    if starts.keys() != ends.keys():
        raise RangeInvalid(
            "the partitions changed while the query was planned; run it again. "
            f"{_difference(starts, ends, 'Only at the start', 'Only at the end')}"
        )
    for partition in sorted(starts):
        start, end = starts[partition], ends[partition]
        if start > end:
            raise RangeInvalid(
                f"{partition} starts at offset {start}, after its end {end}: the start is beyond "
                "the latest offset, or beyond the requested end (check times and offsets that are "
                "used together), or the topic was deleted and created again"
            )
    return [
        OffsetRange(*tp, starts[tp], ends[tp], starts_at_earliest=tp in at_earliest)
        for tp in sorted(starts)
    ]


def check_bounds_fit(start: Bound, end: Bound) -> None:
    """Check what is known of a batch before any request to a broker."""
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
        raise RangeInvalid(f"start and end must name the same partitions. {difference}")
    for partition in sorted(starts):
        first, last = starts[partition], ends[partition]
        # Negative ones are earliest and latest: not known yet.
        if 0 <= last < first:
            raise RangeInvalid(
                f"{partition} starts at {kind} {first}, after its end at {kind} {last}"
            )


def _check_complete(
    given: Collection[TopicPartition], assigned: Collection[TopicPartition], name: str
) -> None:
    if set(given) != set(assigned):
        raise RangeInvalid(
            f"option '{name}' must name exactly the partitions that are read (as an "
            f"offset, -1 is latest and -2 earliest). "
            f"{_difference(given, assigned, 'Named and not read', 'Not named')}"
        )


def _difference(
    left: Collection[TopicPartition],
    right: Collection[TopicPartition],
    only_left: str,
    only_right: str,
) -> str:
    def listed(partitions: set[TopicPartition]) -> str:
        shown = sorted(map(str, partitions))
        return ", ".join(shown[:10]) + (f" and {len(shown) - 10} more" if len(shown) > 10 else "")

    parts = []
    if extra := set(left) - set(right):
        parts.append(f"{only_left}: {listed(extra)}.")
    if missing := set(right) - set(left):
        parts.append(f"{only_right}: {listed(missing)}.")
    return " ".join(parts)
