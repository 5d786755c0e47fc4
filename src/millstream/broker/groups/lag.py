"""Metrics of committed offsets and lag: in steps, because there may be a hundred thousand.

The coordinator of a group knows its committed offsets, the leader of a partition its high
watermark, and these may be two brokers. So each reports what it has, and Prometheus subtracts. The
lag itself is reported for partitions that the coordinator leads or follows.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from millstream.broker.requests.services import Services
from millstream.model.limits import METRIC_SERIES_MAX
from millstream.observe.registry import Batch, Labels

if TYPE_CHECKING:
    from millstream.groups.coordinator import GroupCoordinator
    from millstream.groups.records.keys import OffsetKey

Committed = list[tuple["OffsetKey", int]]

STEP: Final = 256
"""Offsets per step, between which requests are served: less than a millisecond."""
_GROUP_CHARS_MAX: Final = 255
"""Of a label: clients choose group ids, and the protocol allows 32,767 bytes."""
_LABELS: Final = ("group", "topic", "partition")


def register(services: Services, coordinator: "Callable[[], GroupCoordinator | None]") -> None:
    """Register the metrics; `docs/metrics.md` lists them."""
    metrics = services.metrics
    metrics.register_stepwise(
        "group_committed_offset",
        "Committed offset of a group",
        lambda: committed_offsets(coordinator()),
        label_names=_LABELS,
    )
    metrics.register_stepwise(
        "group_lag",
        "Records between a group's committed offset and the high watermark, of partitions with a"
        " replica on this broker",
        lambda: lags(coordinator(), services),
        label_names=_LABELS,
    )
    metrics.register_stepwise(
        "partition_high_watermark",
        "High watermark of partitions led by this broker",
        lambda: high_watermarks(services),
        label_names=("topic", "partition"),
    )
    metrics.register_gauge(
        "group_offsets_left_out",
        "Committed offsets left out of a scrape because there are too many",
        lambda: max(0, offset_count(coordinator()) - METRIC_SERIES_MAX),
    )
    metrics.register_gauge(
        "partitions_left_out",
        "Partitions led by this broker left out of a scrape because there are too many",
        lambda: max(0, len(services.partitions) - METRIC_SERIES_MAX),
    )


def offset_count(coordinator: "GroupCoordinator | None") -> int:
    """Number of committed offsets of the groups on this broker."""
    active = () if coordinator is None else coordinator.shards.active
    return sum(led.machine.offset_count for led in active)


def committed_offsets(coordinator: "GroupCoordinator | None") -> Iterator[Batch]:
    """Of all groups on this broker."""
    for batch in _walk(coordinator):
        yield [(_labels(key), offset) for key, offset in batch]


def lags(coordinator: "GroupCoordinator | None", services: Services) -> Iterator[Batch]:
    """A batch may be empty: none of its offsets is of a partition on this broker."""
    for batch in _walk(coordinator):
        found = [(key, _lag(services, key, offset)) for key, offset in batch]
        yield [(_labels(key), lag) for key, lag in found if lag is not None]


def high_watermarks(services: Services) -> Iterator[Batch]:
    """Of the partitions led by this broker."""
    leaders = islice(services.partitions, METRIC_SERIES_MAX)
    while some := list(islice(leaders, STEP)):
        yield [
            ((one.partition.topic, str(one.partition.partition)), one.log.high_watermark)
            for one in some
        ]


def _walk(coordinator: "GroupCoordinator | None") -> Iterator[Committed]:
    left = METRIC_SERIES_MAX
    for led in coordinator.shards.active if coordinator is not None else ():
        for batch in led.machine.committed_offsets(STEP):
            if not led.is_active:
                break  # led by another broker by now, which reports them
            yield batch[:left]
            left -= len(batch)
            if left <= 0:
                return


def _lag(services: Services, key: "OffsetKey", committed: int) -> int | None:
    """None if this broker has no replica.

    A follower learns the leader's high watermark with its next fetch, and a group may have
    committed an offset above the one it knows.
    """
    end = services.partitions.high_watermark_of((key.topic, key.partition))
    return None if end is None else max(0, end - committed)


def _labels(key: "OffsetKey") -> Labels:
    group = key.group_id
    return (group if len(group) <= _GROUP_CHARS_MAX else _cut(group), key.topic, str(key.partition))


def _cut(group: str) -> str:
    """Shortened with a hash: ids with the same prefix stay distinct."""
    from hashlib import sha256

    digest = sha256(group.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{group[: _GROUP_CHARS_MAX - 17]}~{digest}"
