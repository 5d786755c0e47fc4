"""DescribeConfigs and IncrementalAlterConfigs, for topics and brokers."""

from collections.abc import Collection, Iterable, Mapping
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, TypeVar

from millstream.client.cluster import Cluster
from millstream.client.errors import ClientError, code_of, error_for
from millstream.client.keyed_api import Item, KeyedApi
from millstream.client.retries import Failure
from millstream.client.targets import ANY, CONTROLLER, Node, Target
from millstream.model.config.resources import ResourceType
from millstream.model.ids import BrokerId
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

V = TypeVar("V")
R = TypeVar("R")

_BROKER_KINDS = (ResourceType.BROKER, ResourceType.BROKER_LOGGER)


class ConfigResource(NamedTuple):
    """A topic, broker or group that has settings."""

    kind: ResourceType
    name: str
    """For a broker its id; empty for the cluster-wide defaults."""

    @classmethod
    def topic(cls, name: str) -> "ConfigResource":
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, broker_id: int) -> "ConfigResource":
        return cls(ResourceType.BROKER, str(broker_id))

    def __str__(self) -> str:
        return f"{self.kind.name.lower().replace('_', ' ')} {self.name!r}"


class ConfigSource(IntEnum):
    """Where a value comes from, as DescribeConfigs numbers it."""

    UNKNOWN = 0
    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    FILE = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigEntry(NamedTuple):
    """One setting."""

    name: str
    value: str | None
    """None also for a sensitive setting."""
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool

    @property
    def is_default(self) -> bool:
        """Whether it was not set for this resource itself."""
        return self.source in (ConfigSource.DEFAULT, ConfigSource.FILE, ConfigSource.ALL_BROKERS)


class ConfigOperation(IntEnum):
    """What to do with one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    """To a list."""
    SUBTRACT = 3
    """From a list."""


class ConfigChange(NamedTuple):
    """One change of one setting."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


class _ConfigApi(KeyedApi[ConfigResource, V, R]):
    """A broker serves its own settings, `OTHERS` all the rest."""

    FINAL: ClassVar = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    OTHERS: ClassVar[Target]

    async def route(
        self, keys: Collection[ConfigResource]
    ) -> dict[ConfigResource, Target | Failure]:
        return {
            one: Node(BrokerId(int(one.name)))
            if one.kind in _BROKER_KINDS and one.name.isdecimal()
            else self.OTHERS
            for one in keys
        }

    def final_outcome(
        self, key: ConfigResource, code: ErrorCode, message: str | None, *, was_lost: bool
    ) -> ClientError:
        del was_lost
        topic = key.name if key.kind is ResourceType.TOPIC else None
        return error_for(code, about=str(key), topic=topic, message=message)


class DescribeConfigs(_ConfigApi[None, dict[str, ConfigEntry]]):
    """DescribeConfigs by resource."""

    OTHERS = ANY

    def __init__(self, cluster: Cluster, names: Collection[str] | None) -> None:
        super().__init__(cluster)
        self._names = list(names) if names is not None else None

    def build_request(self, items: Mapping[ConfigResource, None]) -> DescribeConfigsRequest:
        return DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(
                    resource_type=one.kind, resource_name=one.name, configuration_keys=self._names
                )
                for one in items
            ]
        )

    def read(self, response: Any) -> Iterable[Item[ConfigResource, dict[str, ConfigEntry]]]:
        for one in response.results:
            key = ConfigResource(ResourceType(one.resource_type), one.resource_name)
            entries = {entry.name: _entry(entry) for entry in one.configs}
            yield Item(key, code_of(one.error_code), entries, one.error_message)


def _entry(entry: Any) -> ConfigEntry:
    known = entry.config_source in ConfigSource.__members__.values()
    return ConfigEntry(
        name=entry.name,
        value=entry.value,
        source=ConfigSource(entry.config_source) if known else ConfigSource.UNKNOWN,
        is_read_only=entry.read_only,
        is_sensitive=entry.is_sensitive,
    )


class AlterConfigs(_ConfigApi[Collection[ConfigChange], bool]):
    """IncrementalAlterConfigs by resource: settings that are not named stay unchanged."""

    OTHERS = CONTROLLER

    def __init__(self, cluster: Cluster, *, validates_only: bool) -> None:
        super().__init__(cluster)
        self._validates_only = validates_only

    def build_request(
        self, items: Mapping[ConfigResource, Collection[ConfigChange]]
    ) -> IncrementalAlterConfigsRequest:
        resources = [
            AlterConfigsResource(
                resource_type=resource.kind,
                resource_name=resource.name,
                configs=[
                    AlterableConfig(name=one.name, config_operation=one.operation, value=one.value)
                    for one in changes
                ],
            )
            for resource, changes in items.items()
        ]
        return IncrementalAlterConfigsRequest(
            resources=resources, validate_only=self._validates_only
        )

    def read(self, response: Any) -> Iterable[Item[ConfigResource, bool]]:
        for one in response.responses:
            key = ConfigResource(ResourceType(one.resource_type), one.resource_name)
            yield Item(key, code_of(one.error_code), True, one.error_message)
