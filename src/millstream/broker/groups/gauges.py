"""Metrics of the group coordinator; zero while it is not loaded."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from millstream.broker.groups import lag
from millstream.broker.requests.services import Services
from millstream.observe.registry import Kind, Readings

if TYPE_CHECKING:
    from millstream.groups.coordinator import GroupCoordinator

Read = Callable[["GroupCoordinator"], float]

_GAUGES: Final[tuple[tuple[str, str, Read], ...]] = (
    (
        "group_partitions",
        "Partitions of __consumer_offsets this broker is the coordinator of",
        lambda one: len(one.shards.active),
    ),
    (
        "group_partitions_loading",
        "Partitions of __consumer_offsets being loaded",
        lambda one: one.shards.loading_count,
    ),
    (
        "group_offsets",
        "Committed offsets of the groups this broker coordinates",
        lag.offset_count,
    ),
    (
        "group_load_last_seconds",
        "Duration of the last load of a partition of __consumer_offsets",
        lambda one: one.shards.counts.load_ms_last / 1000,
    ),
)

_COUNTERS: Final[tuple[tuple[str, str, Read], ...]] = (
    (
        "group_offset_commits_total",
        "Offsets committed, one per partition",
        lambda one: one.machine_counts().offset_commits,
    ),
    (
        "group_offset_expirations_total",
        "Offsets removed because their retention time was over",
        lambda one: one.machine_counts().offset_expirations,
    ),
    (
        "group_offset_deletions_total",
        "Offsets removed on request or with their topic",
        lambda one: one.machine_counts().offset_deletions,
    ),
    (
        "group_rebalances_total",
        "Completed rebalances of classic groups",
        lambda one: one.machine_counts().completed_rebalances,
    ),
    (
        "group_consumer_rebalances_total",
        "Group epoch changes of groups of the consumer protocol",
        lambda one: one.machine_counts().consumer_rebalances,
    ),
    (
        "group_expirations_total",
        "Groups removed because they had no members and no offsets",
        lambda one: one.machine_counts().expired_groups,
    ),
    (
        "group_loads_total",
        "Loads of partitions of __consumer_offsets",
        lambda one: one.shards.counts.loads,
    ),
    (
        "group_load_failures_total",
        "Loads that failed and were retried",
        lambda one: one.shards.counts.load_failures,
    ),
    (
        "group_records_loaded_total",
        "Records read by loads",
        lambda one: one.shards.counts.records_loaded,
    ),
    (
        "group_records_skipped_total",
        "Records skipped by loads because their type is unknown",
        lambda one: one.shards.counts.records_skipped,
    ),
    (
        "group_write_batches_total",
        "Batches written to __consumer_offsets",
        lambda one: one.shards.counts.batches,
    ),
    (
        "group_writes_total",
        "Writes of groups, several of which may share a batch",
        lambda one: one.shards.counts.writes,
    ),
    (
        "group_writes_refused_total",
        "Writes of groups that the log refused",
        lambda one: one.shards.counts.writes_refused,
    ),
    (
        "group_writes_timed_out_total",
        "Writes whose replicas took longer than offsets.commit.timeout.ms",
        lambda one: one.shards.counts.writes_timed_out,
    ),
)


def register(services: Services) -> None:
    """Register the metrics of groups; `docs/metrics.md` lists them."""
    metrics = services.metrics
    for name, help_text, read in _GAUGES:
        metrics.register_gauge(name, help_text, _make_reader(services, read))
    for name, help_text, read in _COUNTERS:
        metrics.register_counter(name, help_text, _make_reader(services, read))
    metrics.register_labelled(
        "groups",
        "Groups this broker coordinates, by protocol and state",
        lambda: groups_by_state(services),
        kind=Kind.GAUGE,
        label_names=["type", "state"],
    )
    lag.register(services, lambda: _loaded(services))


def _make_reader(services: Services, read: Read) -> Callable[[], float]:
    def value() -> float:
        coordinator = _loaded(services)
        return 0 if coordinator is None else read(coordinator)

    return value


def groups_by_state(services: Services) -> Readings:
    coordinator = _loaded(services)
    total: Counter[tuple[str, str]] = Counter()
    for led in coordinator.shards.active if coordinator is not None else ():
        total += led.machine.groups_by_state()
    return sorted(total.items())


def _loaded(services: Services) -> "GroupCoordinator | None":
    return None if services.groups is None else services.groups.loaded
