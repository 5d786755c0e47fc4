"""How the queries are doing, from what Spark tells about each micro-batch. No I/O, no clock."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from examples.shop.traffic import OrdersProgress
from millstream.pipelines.progress import lag_from_progress


class Batch(NamedTuple):
    """One micro-batch of a query."""

    query: str
    batch_id: int
    ended_s: float
    """Since 1970."""
    duration_s: float
    rows: int
    read: int
    """Records of the topic that this and all batches before have taken."""
    lag: int | None
    """Records that were there and not taken, when the batch began. Not known of the first batch
    after a restart, which is as it was planned before."""
    watermark: datetime | None
    late_rows: int
    """Left out of the sums because they came too late."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.duration_s if self.duration_s else 0.0


def batches_of(progress: Iterable[Mapping[str, Any]]) -> list[Batch]:
    """From `query.recentProgress`; entries that only say that there was nothing to do are none."""
    return [_batch(one) for one in progress if "addBatch" in one["durationMs"]]


def _batch(progress: Mapping[str, Any]) -> Batch:
    source = progress["sources"][0]
    lag = lag_from_progress(source["endOffset"], source["latestOffset"])
    watermark = (progress["eventTime"] or {}).get("watermark")
    duration_s = progress["batchDuration"] / 1000
    return Batch(
        query=progress["name"],
        batch_id=progress["batchId"],
        ended_s=datetime.fromisoformat(progress["timestamp"]).timestamp() + duration_s,
        duration_s=duration_s,
        rows=progress["numInputRows"],
        read=_records_before(source["endOffset"]),
        lag=lag.total_offsets if lag else None,
        watermark=datetime.fromisoformat(watermark) if watermark else None,
        late_rows=sum(one["numRowsDroppedByWatermark"] for one in progress["stateOperators"]),
    )


def _records_before(offset: str) -> int:
    """Of `{"orders":{"0":23,"1":5}}`: 28, for nothing was deleted and all begins at 0."""
    topics = json.loads(offset).values()
    return sum(position for partitions in topics for position in partitions.values())


@dataclass
class Story:
    """All that happened so far. Batches and words of the shop come from threads of their own."""

    names: Sequence[str]
    """Of the queries."""
    event_count: int
    started_s: float
    batches: list[Batch] = field(default_factory=list)
    reports: list[tuple[float, OrdersProgress]] = field(default_factory=list)
    """What the shop said, and when."""

    @property
    def written(self) -> int:
        return self.reports[-1][1].written if self.reports else 0

    @property
    def ended_s(self) -> float:
        """When the last batch ended."""
        return max((batch.ended_s for batch in self.batches), default=self.started_s)

    def of(self, query: str) -> list[Batch]:
        return [batch for batch in self.batches if batch.query == query]

    def last(self, query: str) -> Batch | None:
        return next((one for one in reversed(self.batches) if one.query == query), None)

    def read(self, query: str) -> int:
        last = self.last(query)
        return last.read if last else 0

    def is_read(self, count: int) -> bool:
        """Every query has taken so many records."""
        return all(self.read(name) >= count for name in self.names)

    def has_passed(self, moment: datetime) -> bool:
        """Sums were written with the watermark there: windows that end before it are out."""
        return any(one.watermark and one.watermark >= moment for one in list(self.batches))

    @property
    def late_rows(self) -> int:
        return sum(batch.late_rows for batch in self.batches)
