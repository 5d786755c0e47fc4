"""The broker's settings as the group coordinator reads them; dynamic changes apply at once."""

from collections.abc import Callable, Sequence

from millstream.broker.configs.group_configs import configs_of
from millstream.broker.requests.services import Services
from millstream.groups.settings import MigrationPolicy
from millstream.model.config.group_keys import (
    ASSIGNMENT_INTERVAL,
    HEARTBEAT_INTERVAL,
    SESSION_TIMEOUT,
)
from millstream.model.ids import GroupId

_MS_PER_MINUTE = 60_000


class BrokerGroupSettings:
    """Implements `groups.settings.GroupSettings` and `shards.context.ShardSettings`."""

    def __init__(self, services: Callable[[], Services]) -> None:
        self._services = services
        self._int = services().configs.get_int
        """Called several times for every commit."""

    def _of_group(self, group_id: GroupId, name: str) -> int:
        services = self._services()
        return services.configs.group_int(configs_of(services.image, group_id), name)

    # -- classic groups --------------------------------------------------------------------

    @property
    def session_timeout_min_ms(self) -> int:
        return self._int("group.min.session.timeout.ms")

    @property
    def session_timeout_max_ms(self) -> int:
        return self._int("group.max.session.timeout.ms")

    @property
    def group_size_max(self) -> int:
        return self._int("group.max.size")

    @property
    def initial_rebalance_delay_ms(self) -> int:
        return self._int("group.initial.rebalance.delay.ms")

    # -- offsets ---------------------------------------------------------------------------

    @property
    def offset_metadata_bytes_max(self) -> int:
        return self._int("offset.metadata.max.bytes")

    @property
    def offsets_retention_ms(self) -> int:
        return self._int("offsets.retention.minutes") * _MS_PER_MINUTE

    @property
    def expire_interval_ms(self) -> int:
        return self._int("offsets.retention.check.interval.ms")

    @property
    def commit_timeout_ms(self) -> int:
        return self._int("offsets.commit.timeout.ms")

    @property
    def load_bytes_max(self) -> int:
        return self._int("offsets.load.buffer.size")

    @property
    def append_linger_ms(self) -> int:
        return self._int("group.coordinator.append.linger.ms")

    # -- consumer groups -------------------------------------------------------------------

    @property
    def consumer_session_timeout_ms(self) -> int:
        return self._int("group.consumer.session.timeout.ms")

    @property
    def consumer_heartbeat_interval_ms(self) -> int:
        return self._int("group.consumer.heartbeat.interval.ms")

    @property
    def consumer_assignment_interval_ms(self) -> int:
        return self._int("group.consumer.assignment.interval.ms")

    @property
    def consumer_group_size_max(self) -> int:
        return self._int("group.consumer.max.size")

    @property
    def consumer_assignors(self) -> Sequence[str]:
        return self._services().configs.get_list("group.consumer.assignors")

    @property
    def migration_policy(self) -> MigrationPolicy:
        text = self._services().configs.get_text("group.consumer.migration.policy")
        return MigrationPolicy(text.lower())

    def consumer_session_timeout_of(self, group_id: GroupId) -> int:
        return self._of_group(group_id, SESSION_TIMEOUT)

    def consumer_heartbeat_interval_of(self, group_id: GroupId) -> int:
        return self._of_group(group_id, HEARTBEAT_INTERVAL)

    def consumer_assignment_interval_of(self, group_id: GroupId) -> int:
        return self._of_group(group_id, ASSIGNMENT_INTERVAL)
