"""The broker's gauges: callbacks that a scrape runs, without a cost between scrapes."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker.requests.services import Services
from millstream.controller.cluster.tally import Tally
from millstream.controller.image import NO_LEADER
from millstream.observe.broker_metrics import TopicTotals
from millstream.observe.registry import Kind

if TYPE_CHECKING:
    from millstream.replication.partition import Partition


def register(services: Services) -> None:
    """Register the metrics of logs, partitions and fetch sessions; `docs/metrics.md` lists them."""
    metrics, logs, partitions = services.metrics, services.logs, services.partitions
    metrics.register_topics(lambda: topic_totals(partitions))
    metrics.register_gauge("partitions", "Partitions led by this broker", lambda: len(partitions))
    metrics.register_gauge(
        "offline_partitions",
        "Replicas on this broker whose log is offline: it or its directory failed or is missing",
        lambda: offline_partition_count(services),
    )
    metrics.register_gauge(
        "damaged_partitions",
        "Replicas on this broker with records that cannot be read, and without another replica",
        lambda: sum(len(one.damaged_partitions) for one in logs.directories),
    )
    metrics.register_gauge(
        "offline_log_directories",
        "Log directories that failed or are missing",
        lambda: sum(one.failure is not None for one in logs.directories),
    )
    metrics.register_labelled(
        "log_directory_full",
        "1 while the log directory refuses writes because its disk is full",
        lambda: [((one.path,), int(one.is_full)) for one in logs.directories],
        label_names=["directory"],
    )
    metrics.register_labelled(
        "log_directory_refused_writes_total",
        "Writes refused because the disk was full",
        lambda: [((one.path,), one.room.refused_writes) for one in logs.directories],
        kind=Kind.COUNTER,
        label_names=["directory"],
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
        "Fetch sessions evicted because the cache was full",
        lambda: sessions.evictions,
    )
    metrics.register_gauge(
        "waiting_fetches",
        "Fetch requests waiting for records",
        lambda: len({reader for one in partitions for reader in one.readers}),
    )


def register_cluster(services: Services, tally: Tally) -> None:
    """Register the metrics of a cluster; a standalone broker is its own controller."""
    metrics, partitions = services.metrics, services.partitions
    cluster, counts = partitions.cluster, partitions.counts
    for name, help_text, read in (
        (
            "followed_partitions",
            "Partitions followed by this broker",
            lambda: len(partitions.followers),
        ),
        (
            "under_replicated_partitions",
            "Partitions led by this broker with replicas that are not in sync",
            lambda: partitions.under_replicated_count,
        ),
        (
            "under_min_isr_partitions",
            "Partitions led by this broker with fewer replicas in sync than min.insync.replicas",
            lambda: partitions.under_min_isr_count,
        ),
        (
            "full_replicas",
            "Replicas of this broker that others replace because their log directory is full",
            lambda: full_replica_count(services),
        ),
        (
            "active_controller",
            "1 if this broker is the controller",
            lambda: int(_is_controller(services)),
        ),
        (
            "leaderless_partitions",
            "Partitions of the cluster without a leader; only reported by the controller",
            lambda: leaderless_count(services),
        ),
    ):
        metrics.register_gauge(name, help_text, read)
    for name, help_text, read in (
        (
            "isr_shrinks_total",
            "ISR shrinks of partitions led by this broker",
            lambda: cluster.isr_shrinks,
        ),
        (
            "isr_expands_total",
            "ISR expansions of partitions led by this broker",
            lambda: cluster.isr_growths,
        ),
        ("replication_bytes_in_total", "Bytes replicated from leaders", lambda: counts.bytes_in),
        (
            "truncations_total",
            "Logs truncated to agree with their leader",
            lambda: counts.truncations,
        ),
        (
            "unclean_truncations_total",
            "Log truncations below the high watermark, after an unclean leader election",
            lambda: counts.unclean_truncations,
        ),
    ):
        metrics.register_counter(name, help_text, read)
    _register_elections(services, tally)


def _register_elections(services: Services, tally: Tally) -> None:
    for name, help_text, read in (
        (
            "leader_elections_total",
            "Leaders elected by this broker as the controller",
            lambda: tally.elections,
        ),
        (
            "unclean_leader_elections_total",
            "Unclean leader elections by this broker as the controller: records may be lost",
            lambda: tally.unclean_elections,
        ),
        (
            "last_leader_elections_total",
            "Elections of a partition's last leader after it was not shut down cleanly",
            lambda: tally.last_leader_elections,
        ),
    ):
        services.metrics.register_counter(name, help_text, read)


def _is_controller(services: Services) -> bool:
    return services.membership is None or services.membership.is_active


def leaderless_count(services: Services) -> int:
    """Of the whole cluster; 0 unless this broker is the controller."""
    if not _is_controller(services):
        return 0
    topics = services.image.topics.values()
    return sum(one.leader == NO_LEADER for topic in topics for one in topic.partitions)


def full_replica_count(services: Services) -> int:
    """Replicas of this broker that the metadata has as full."""
    me, topics = services.broker_id, services.image.topics.values()
    return sum(me in one.full for topic in topics for one in topic.partitions)


def offline_partition_count(services: Services) -> int:
    """Replicas assigned to this broker that have no log that can be read and written."""
    partitions, me = services.partitions, services.broker_id
    online = sum(one.log.failure is None for one in partitions)
    online += sum(one.log.failure is None for one in partitions.followers)
    topics = services.image.topics.values()
    return sum(me in one.replicas for topic in topics for one in topic.partitions) - online


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
