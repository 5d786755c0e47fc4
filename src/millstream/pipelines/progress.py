"""How far a query is behind: the connector's metrics, and bytes where they are known.

Spark takes no metrics from a Python source, but its progress holds the end of the last batch and
the latest offset as JSON; `lag_from_progress` computes the metrics from those two, so that a
listener or a notebook can show them.
"""

import json
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from millstream.model.ids import TopicPartition
from millstream.pipelines.admission import Positions
from millstream.pipelines.byte_estimate import ByteEstimate
from millstream.pipelines.source_offset import source_offset_from_document

_NOT_KNOWN: Final = ("", "null", "None")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Offsets between the query's positions and the latest offsets, over partitions."""

    min_offsets: int
    max_offsets: int
    total_offsets: int
    partition_count: int
    estimated_bytes: int | None = None
    """None while the bytes of some partition with a backlog are not known."""

    @property
    def avg_offsets(self) -> float:
        return self.total_offsets / self.partition_count

    def metrics(self) -> dict[str, str]:
        """Under the connector's names."""
        found = {
            "minOffsetsBehindLatest": str(self.min_offsets),
            "maxOffsetsBehindLatest": str(self.max_offsets),
            "avgOffsetsBehindLatest": str(self.avg_offsets),
        }
        if self.estimated_bytes is not None:
            found["estimatedTotalBytesBehindLatest"] = str(self.estimated_bytes)
        return found


def lag(
    consumed: Positions, latest: Positions, *, estimate: ByteEstimate | None = None
) -> Lag | None:
    """None without partitions. A partition that was not read yet is behind by its latest offset."""
    if not latest:
        return None
    behind = {tp: offset - consumed.get(tp, 0) for tp, offset in latest.items()}
    return Lag(
        min_offsets=min(behind.values()),
        max_offsets=max(behind.values()),
        total_offsets=sum(behind.values()),
        partition_count=len(behind),
        estimated_bytes=None if estimate is None else _bytes(behind, estimate),
    )


def lag_from_progress(end_offset: str | None, latest_offset: str | None) -> Lag | None:
    """From `sources[i].endOffset` and `.latestOffset` of a query's progress.

    None when one of them is not known: the first batch after a restart was planned before it, so
    Spark has not looked up the latest offset, and reports null or None instead.
    """
    end, latest = _positions(end_offset), _positions(latest_offset)
    return None if end is None or latest is None else lag(end, latest)


def _positions(offset: str | None) -> Positions | None:
    if offset is None or offset in _NOT_KNOWN:
        return None
    return source_offset_from_document(json.loads(offset)).positions


def _bytes(behind: dict[TopicPartition, int], estimate: ByteEstimate) -> int | None:
    total = Fraction(0)
    for partition, offsets in behind.items():
        if offsets <= 0:
            continue
        rate = estimate.known_bytes_per_offset(partition)
        if rate is None:
            return None
        total += rate * offsets
    return round(total)
