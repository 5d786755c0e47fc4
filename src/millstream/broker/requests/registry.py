"""Which APIs this broker serves, in which versions, and where.

A table instead of imports: a broker must be ready in well under a second, and most clients never
use most APIs, so a handler's module is loaded by the first request for it.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from millstream.broker.requests.between_brokers import BETWEEN_BROKERS
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode


class Served(NamedTuple):
    """One API of this broker."""

    module: str
    """Of the handler, in `broker/handlers/`, and of the messages, in `wire/messages/`."""
    versions: range


def _up_to(module: str, first: int, last: int) -> Served:
    return Served(module, range(first, last + 1))


SERVED: Final[Mapping[ApiKey, Served]] = {
    ApiKey.PRODUCE: _up_to("produce", 3, 13),
    ApiKey.FETCH: _up_to("fetch", 4, 18),
    ApiKey.LIST_OFFSETS: _up_to("list_offsets", 1, 11),
    ApiKey.METADATA: _up_to("metadata", 0, 13),
    ApiKey.OFFSET_COMMIT: _up_to("offset_commit", 2, 10),
    ApiKey.OFFSET_FETCH: _up_to("offset_fetch", 1, 10),
    ApiKey.FIND_COORDINATOR: _up_to("find_coordinator", 0, 6),
    ApiKey.JOIN_GROUP: _up_to("join_group", 0, 9),
    ApiKey.HEARTBEAT: _up_to("heartbeat", 0, 4),
    ApiKey.LEAVE_GROUP: _up_to("leave_group", 0, 5),
    ApiKey.SYNC_GROUP: _up_to("sync_group", 0, 5),
    ApiKey.DESCRIBE_GROUPS: _up_to("describe_groups", 0, 6),
    ApiKey.LIST_GROUPS: _up_to("list_groups", 0, 5),
    ApiKey.API_VERSIONS: _up_to("api_versions", 0, 4),
    ApiKey.CREATE_TOPICS: _up_to("create_topics", 2, 7),
    ApiKey.DELETE_TOPICS: _up_to("delete_topics", 1, 6),
    ApiKey.DELETE_RECORDS: _up_to("delete_records", 0, 2),
    ApiKey.INIT_PRODUCER_ID: _up_to("init_producer_id", 0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _up_to("offset_for_leader_epoch", 2, 4),
    ApiKey.DESCRIBE_CONFIGS: _up_to("describe_configs", 1, 4),
    ApiKey.ALTER_CONFIGS: _up_to("alter_configs", 0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _up_to("alter_replica_log_dirs", 1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: _up_to("describe_log_dirs", 1, 5),
    ApiKey.CREATE_PARTITIONS: _up_to("create_partitions", 0, 3),
    ApiKey.DELETE_GROUPS: _up_to("delete_groups", 0, 2),
    ApiKey.ELECT_LEADERS: _up_to("elect_leaders", 0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _up_to("incremental_alter_configs", 0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _up_to("alter_partition_reassignments", 0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _up_to("list_partition_reassignments", 0, 0),
    ApiKey.OFFSET_DELETE: _up_to("offset_delete", 0, 0),
    ApiKey.DESCRIBE_QUORUM: _up_to("describe_quorum", 0, 2),
    ApiKey.ALTER_PARTITION: _up_to("alter_partition", 2, 3),
    ApiKey.UPDATE_FEATURES: _up_to("update_features", 0, 2),
    ApiKey.ENVELOPE: _up_to("envelope", 0, 0),
    ApiKey.DESCRIBE_CLUSTER: _up_to("describe_cluster", 0, 2),
    ApiKey.DESCRIBE_PRODUCERS: _up_to("describe_producers", 0, 0),
    ApiKey.BROKER_HEARTBEAT: _up_to("broker_heartbeat", 0, 1),
    ApiKey.UNREGISTER_BROKER: _up_to("unregister_broker", 0, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _up_to("consumer_group_heartbeat", 0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _up_to("consumer_group_describe", 0, 1),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: _up_to("assign_replicas_to_dirs", 0, 0),
    ApiKey.LIST_CONFIG_RESOURCES: _up_to("list_config_resources", 0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _up_to("describe_topic_partitions", 0, 0),
    ApiKey.PULL_METADATA: _up_to("pull_metadata", 0, 0),
    ApiKey.AUTHENTICATE_BROKER: _up_to("authenticate_broker", 0, 0),
}

PRODUCE_ADVERTISED_FROM: Final = 0
"""librdkafka takes a broker without Produce 0 for one that cannot compress; 0-2 are refused."""


class Handler(NamedTuple):
    """A handler's module, loaded."""

    decode: Callable[[memoryview, int], Any]
    handle: Callable[[Any, Any], Any]
    failed: Callable[[Any, ErrorCode, int], Any]
    versions: range
    is_for_brokers: bool = False
    """Whether it is served only on connections that have proven to be a broker's."""


LOADED_LATER: Final = (
    "millstream.storage.compaction.work",
    # The group coordinator, module by module: requests are served between two of them.
    "millstream.groups.records.entries",
    "millstream.groups.offsets.machine",
    "millstream.groups.classic.group",
    "millstream.groups.consumer.target",
    "millstream.groups.consumer.core",
    "millstream.groups.consumer.group",
    "millstream.groups.shard",
    "millstream.groups.coordinator",
    "millstream.broker.groups.settings",
    "millstream.broker.groups.topics",
)
"""Modules beside the handlers that a start does not need, loaded before descriptors may run out."""


def load_all() -> Iterator[object]:
    """Load every handler, one per step: a broker that has run out of descriptors cannot."""
    for key in SERVED:
        load(key)
        yield key
    for name in LOADED_LATER:
        yield importlib.import_module(name)


def load(key: ApiKey) -> Handler:
    """Import the handler and the messages of an API that is served."""
    served = SERVED[key]
    module = importlib.import_module(f"millstream.broker.handlers.{served.module}")
    if hasattr(module, "decode"):
        decode = module.decode  # a faster decoder of its own, for a hot path
    else:
        messages = importlib.import_module(f"millstream.wire.messages.{served.module}")
        words = served.module.split("_")
        name = "".join(map(str.capitalize, words)) + "Request"
        decode = getattr(messages, name).decode_served

    return Handler(decode, module.handle, module.failed, served.versions, key in BETWEEN_BROKERS)
