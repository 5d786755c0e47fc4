"""What a scrape asks the broker's parts: nothing here costs anything while nobody looks."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker.services import Services
from millstream.observe.broker_metrics import TopicTotals

if TYPE_CHECKING:
    from millstream.replication.partition import Partition


def register(services: Services) -> None:
    """Connect the parts to the metrics under the names that `docs/metrics.md` lists."""
    metrics, logs, partitions = services.metrics, services.logs, services.partitions
    metrics.register_topics(lambda: topic_totals(partitions))
    metrics.register_gauge("partitions", "Partitions led here", lambda: len(partitions))
    metrics.register_gauge(
        "offline_partitions",
        "Partitions whose log cannot be used: it or its directory failed, or is missing",
        lambda: offline_partition_count(services),
    )
    metrics.register_gauge(
        "offline_log_directories",
        "Log directories that failed or are missing",
        lambda: sum(one.failure is not None for one in logs.directories),
    )
    metrics.register_gauge(
        "open_segment_files", "Segment files held open", lambda: logs.files.open_count
    )
    sessions = services.fetch_sessions
    metrics.register_gauge("fetch_sessions", "Fetch sessions", lambda: len(sessions))
    metrics.register_gauge(
        "fetch_session_partitions",
        "Partitions in fetch sessions",
        lambda: sessions.partition_count,
    )
    metrics.register_counter(
        "fetch_session_evictions_total",
        "Fetch sessions that made room for others",
        lambda: sessions.evictions,
    )
    metrics.register_gauge(
        "waiting_fetches",
        "Fetches that wait for records",
        lambda: len({reader for one in partitions for reader in one.readers}),
    )


def offline_partition_count(services: Services) -> int:
    """Partitions that should be here and have no log that can be read and written."""
    online = sum(one.log.failure is None for one in services.partitions)
    topics = services.image.topics.values()
    return sum(len(topic.partitions) for topic in topics) - online


def topic_totals(partitions: "Iterable[Partition]") -> list[TopicTotals]:
    """The counters of every topic, summed over its partitions."""
    totals: dict[str, list[int]] = {}
    for one in partitions:
        sums = totals.setdefault(one.partition.topic, [0, 0, 0, 0, 0])
        slot = one.slot
        for at, count in enumerate(
            (1, slot.records_in, slot.bytes_in, one.bytes_out, one.log.size_bytes)
        ):
            sums[at] += count
    return [TopicTotals(topic, *sums) for topic, sums in sorted(totals.items())]
