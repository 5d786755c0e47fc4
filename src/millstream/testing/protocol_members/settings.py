"""Settings of groups for tests: Kafka's defaults, each of them a field that a test may change."""

from dataclasses import dataclass, field

from millstream.groups.settings import MigrationPolicy
from millstream.model.ids import GroupId

WEEK_MS = 7 * 24 * 3_600_000


@dataclass(slots=True, kw_only=True)
class MutableGroupSettings:
    """A `GroupSettings` that is changed by assignment, as a dynamic change would."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    group_size_max: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = WEEK_MS
    offsets_retention_check_interval_ms: int = 600_000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_assignment_interval_ms: int = 1_000
    consumer_group_size_max: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    session_timeouts: dict[GroupId, int] = field(default_factory=dict)
    """Overrides for single groups; also the two below."""
    heartbeat_intervals: dict[GroupId, int] = field(default_factory=dict)
    assignment_intervals: dict[GroupId, int] = field(default_factory=dict)

    def consumer_session_timeout_of(self, group_id: GroupId) -> int:
        return self.session_timeouts.get(group_id, self.consumer_session_timeout_ms)

    def consumer_heartbeat_interval_of(self, group_id: GroupId) -> int:
        return self.heartbeat_intervals.get(group_id, self.consumer_heartbeat_interval_ms)

    def consumer_assignment_interval_of(self, group_id: GroupId) -> int:
        return self.assignment_intervals.get(group_id, self.consumer_assignment_interval_ms)
