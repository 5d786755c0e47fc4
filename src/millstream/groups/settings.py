"""Settings of groups, read live: a dynamic change applies from the next decision.

The names follow Kafka's keys (`group.min.session.timeout.ms`, `group.consumer.session.timeout.ms`,
`offsets.retention.minutes`, ...). Settings that a group can override (the config resource GROUP)
are methods that take the group's id; the property is the broker's value, the default.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from millstream.model.ids import GroupId


class MigrationPolicy(Enum):
    """`group.consumer.migration.policy`: how a group with members may change its protocol.

    An empty group always may.
    """

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def may_upgrade(self) -> bool:
        """From the classic protocol to the consumer protocol."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def may_downgrade(self) -> bool:
        """From the consumer protocol to the classic one."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class ClassicSettings(Protocol):
    """Of groups whose members compute the assignment."""

    @property
    def session_timeout_min_ms(self) -> int:
        """`group.min.session.timeout.ms`"""

    @property
    def session_timeout_max_ms(self) -> int:
        """`group.max.session.timeout.ms`"""

    @property
    def group_size_max(self) -> int:
        """`group.max.size`"""

    @property
    def initial_rebalance_delay_ms(self) -> int:
        """`group.initial.rebalance.delay.ms`"""


class OffsetSettings(Protocol):
    """Of committed offsets."""

    @property
    def offset_metadata_bytes_max(self) -> int:
        """`offset.metadata.max.bytes`"""

    @property
    def offsets_retention_ms(self) -> int:
        """`offsets.retention.minutes`, in milliseconds."""


class ConsumerSettings(Protocol):
    """Of groups whose assignment the broker computes (KIP-848)."""

    @property
    def consumer_session_timeout_ms(self) -> int:
        """`group.consumer.session.timeout.ms`"""

    @property
    def consumer_heartbeat_interval_ms(self) -> int:
        """`group.consumer.heartbeat.interval.ms`"""

    @property
    def consumer_assignment_interval_ms(self) -> int:
        """`group.consumer.assignment.interval.ms`"""

    @property
    def consumer_group_size_max(self) -> int:
        """`group.consumer.max.size`"""

    @property
    def consumer_assignors(self) -> Sequence[str]:
        """`group.consumer.assignors`: names; the first is used if a member names none."""

    @property
    def migration_policy(self) -> MigrationPolicy:
        """`group.consumer.migration.policy`"""

    def consumer_session_timeout_of(self, group_id: GroupId) -> int:
        """`consumer.session.timeout.ms` of the group, within the broker's limits."""

    def consumer_heartbeat_interval_of(self, group_id: GroupId) -> int:
        """`consumer.heartbeat.interval.ms` of the group, within the broker's limits."""

    def consumer_assignment_interval_of(self, group_id: GroupId) -> int:
        """`consumer.assignment.interval.ms` of the group, within the broker's limits."""


class GroupSettings(ClassicSettings, OffsetSettings, ConsumerSettings, Protocol):
    """All of them; a machine uses the part that concerns it."""
