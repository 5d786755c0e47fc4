"""Our settings are Kafka's: the same names, types, defaults and synonyms, the same refusals.

Kafka answers over its port; ours are asked through the handlers, on a simulated disk.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.broker.config_kit import APPEND, DELETE, SET, SUBTRACT, TOPIC, ConfigWorld, Keys
from kits.controller.controller_kit import run
from kits.process.wire_client import WireClient
from millstream.model.config.broker_keys import BROKER_KEYS, OWN_KEYS
from millstream.model.config.group_keys import GROUP_KEYS
from millstream.model.config.inert_reasons import INERT_TOPIC_REASONS, inert_broker_reason
from millstream.model.config.later_keys import LATER_KEYS
from millstream.model.config.resources import ResourceType
from millstream.model.config.topic_keys import TOPIC_KEYS
from millstream.testing.peers.kafka import ApacheKafka
from millstream.wire.errors import ErrorCode
from millstream.wire.messages import alter_configs as whole
from millstream.wire.messages import incremental_alter_configs as single
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)
from millstream.wire.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

pytestmark = pytest.mark.interop

DEFAULT = 5
OTHER_DEFAULTS = {"log.dir", "node.id", "queued.max.request.bytes", "socket.send.buffer.bytes"}
"""Ours on purpose; the documentation says why."""
READ_AT_START = {"listeners", "listener.security.protocol.map", "log.cleaner.dedupe.buffer.size"}
"""Dynamic in Kafka."""
SET_BY_KAFKA = {"min.insync.replicas"}
"""Kafka gives itself a dynamic default of it, for a feature that comes with its controllers."""
MOVE_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
SHOWN_ONCE_SET = {
    MOVE_RATE,
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
}
"""Kafka has no static setting of it, and describes it only where it was changed."""
ZOOKEEPER = {name for name in BROKER_KEYS if name.startswith("zookeeper.")}
"""Of Kafka before 4.0."""


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireClient]:
    """A client of a Kafka that has the topic."""
    directory = tmp_path_factory.mktemp("kafka")
    with (
        ApacheKafka(directory, jars=jars) as server,
        WireClient(server.bootstrap_servers) as client,
    ):
        client.create_topic(TOPIC)
        yield client


def described(
    client: WireClient, kind: ResourceType, name: str
) -> dict[str, DescribeConfigsResourceResult]:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (result,) = client.send(request, 4).results
    assert result.error_code == ErrorCode.NONE, result
    return {one.name: one for one in result.configs}


def facts(one: DescribeConfigsResourceResult) -> tuple[object, ...]:
    synonyms = [(synonym.name, synonym.value, synonym.source) for synonym in one.synonyms]
    if one.name in SET_BY_KAFKA:
        synonyms = [synonym for synonym in synonyms if synonym[2] == DEFAULT]
    return (one.value, one.config_type, one.read_only, one.is_sensitive, synonyms)


def test_every_topic_key_is_the_same_or_refused(kafka: WireClient) -> None:
    theirs = described(kafka, ResourceType.TOPIC, TOPIC)

    async def story() -> dict[str, DescribeConfigsResourceResult]:
        return (await ConfigWorld().with_topic()).describe(ResourceType.TOPIC, TOPIC)

    ours = run(story)
    assert set(ours) | set(INERT_TOPIC_REASONS) == set(theirs)
    for name, one in ours.items():
        assert facts(one) == facts(theirs[name]), name
        if name not in SET_BY_KAFKA:
            assert one.config_source == theirs[name].config_source


def test_every_broker_key_has_its_place(kafka: WireClient) -> None:
    theirs = described(kafka, ResourceType.BROKER, "1")
    known = {*BROKER_KEYS, *LATER_KEYS}
    lost = [name for name in theirs if name not in known and inert_broker_reason(name) is None]
    assert not lost
    assert known - set(theirs) == OWN_KEYS | ZOOKEEPER | SHOWN_ONCE_SET
    for name in sorted(known & set(theirs)):
        key = BROKER_KEYS.get(name) or LATER_KEYS[name]
        one = theirs[name]
        assert key.type == one.config_type, name
        if name not in OTHER_DEFAULTS:
            given = [s.value for s in one.synonyms if s.source == DEFAULT and s.name == name]
            assert [key.default] == (given or [None]), name


def test_the_same_broker_keys_can_change(kafka: WireClient) -> None:
    theirs = described(kafka, ResourceType.BROKER, "1")
    ours = ConfigWorld().describe(ResourceType.BROKER, "1")
    for name in set(ours) & set(theirs):
        expected = name in READ_AT_START or theirs[name].read_only
        assert ours[name].read_only == expected, name


def test_settings_of_a_group_are_the_same(kafka: WireClient) -> None:
    ours = ConfigWorld()
    own = set(GROUP_KEYS)
    shown, theirs = (
        ours.describe(ResourceType.GROUP, "some"),
        described(kafka, ResourceType.GROUP, "some"),
    )
    assert set(shown) == own
    assert {name for name in theirs if name.startswith("consumer.")} == own
    for name, one in shown.items():
        assert facts(one) == facts(theirs[name]), name
        assert one.config_source == theirs[name].config_source


# -- changes -----------------------------------------------------------------------------------

TOPIC_VALUES: list[tuple[str, str | None]] = [
    ("segment.bytes", "1048575"),
    ("segment.bytes", "1048576"),
    ("segment.bytes", "x"),
    ("segment.bytes", "99999999999"),
    ("segment.bytes", ""),
    ("segment.ms", "0"),
    ("segment.jitter.ms", "-1"),
    ("segment.index.bytes", "3"),
    ("segment.index.bytes", "4"),
    ("retention.ms", "-1"),
    ("retention.ms", "-2"),
    ("retention.ms", "0"),
    ("retention.bytes", "-5"),
    ("cleanup.policy", "foo"),
    ("cleanup.policy", "delete,delete"),
    ("cleanup.policy", ""),
    ("cleanup.policy", " compact , delete "),
    ("cleanup.policy", "compact,,delete"),
    ("cleanup.policy", "COMPACT"),
    ("min.cleanable.dirty.ratio", "1.5"),
    ("min.cleanable.dirty.ratio", "nan"),
    ("min.cleanable.dirty.ratio", "0.5f"),
    ("min.cleanable.dirty.ratio", ".5"),
    ("min.cleanable.dirty.ratio", "1e-1"),
    ("compression.type", "none"),
    ("compression.type", "zstd"),
    ("compression.type", "GZIP"),
    ("compression.gzip.level", "0"),
    ("compression.gzip.level", "-1"),
    ("compression.gzip.level", "10"),
    ("compression.lz4.level", "18"),
    ("compression.zstd.level", "23"),
    ("compression.zstd.level", "-131072"),
    ("message.timestamp.type", "logappendtime"),
    ("message.timestamp.before.max.ms", "-1"),
    ("message.timestamp.after.max.ms", "-1"),
    ("min.insync.replicas", "0"),
    ("max.message.bytes", "-1"),
    ("max.message.bytes", "+5"),
    ("max.message.bytes", "1_0"),
    ("max.message.bytes", " 7 "),
    ("flush.messages", "0"),
    ("flush.ms", "-1"),
    ("index.interval.bytes", "-1"),
    ("delete.retention.ms", "-1"),
    ("file.delete.delay.ms", "-1"),
    ("max.compaction.lag.ms", "0"),
    ("internal.segment.bytes", "100"),
    ("message.format.version", "2.8"),
    ("nope", "1"),
]
TOPIC_CHANGES: list[Keys] = [
    *[[(name, SET, value)] for name, value in TOPIC_VALUES],
    [("cleanup.policy", APPEND, "compact")],
    [("cleanup.policy", SUBTRACT, "delete")],
    [("segment.ms", APPEND, "5")],
    [("nope", APPEND, "5")],
    [("nope", DELETE, None)],
    [("segment.ms", DELETE, "5")],
    [("segment.ms", SET, None)],
    [("segment.ms", SET, "5"), ("segment.ms", SET, "6")],
    [("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5")],
    [],
]
BROKER_CHANGES: list[tuple[str, int, str | None]] = [
    ("num.partitions", SET, "3"),
    ("log.cleaner.enable", SET, "false"),
    ("log.retention.ms", SET, "1000"),
    ("log.retention.ms", SET, "x"),
    ("log.retention.ms", SET, "0"),
    ("log.retention.hours", SET, "3"),
    ("log.segment.bytes", SET, "5"),
    ("max.connections", SET, "x"),
    ("max.connections", APPEND, "1"),
    ("max.connections", 9, "1"),
    ("max.connections.per.ip", SET, "0"),
    ("max.connections.per.ip.overrides", SET, "foo"),
    ("max.connections.per.ip.overrides", SET, "1.2.3.4:5"),
    ("log.cleanup.policy", APPEND, "compact"),
    ("log.cleaner.max.compaction.lag.ms", SET, "0"),
    *((MOVE_RATE, SET, value) for value in ("0", "-1", "x", "5000000")),
    (MOVE_RATE, DELETE, None),
    ("nope", APPEND, "1"),
    ("nope", DELETE, None),
    ("num.partitions", DELETE, None),
    ("min.insync.replicas", SET, "1"),
]
OTHER_CHANGES: list[tuple[int, str, Keys]] = [
    (4, "1", [("min.insync.replicas", DELETE, None)]),
    (2, "nope", [("segment.ms", SET, "1")]),
    (2, "nope", [("segment.ms", SET, "0")]),
    (2, "", [("segment.ms", SET, "1")]),
    (2, "a b", [("segment.ms", SET, "1")]),
    (4, "7", [("log.roll.ms", SET, "1")]),
    (4, "x", [("log.roll.ms", SET, "1")]),
    (8, "7", [("root", SET, "INFO")]),
    (8, "", [("root", SET, "INFO")]),
    (8, "1", [("root", SET, "INFO")]),
    (8, "1", [("root", SET, "info")]),
    (8, "1", [("root", DELETE, None)]),
    (8, "1", [("root", APPEND, "INFO")]),
    (8, "1", [("no.such.logger", SET, "INFO")]),
    (16, "", [("interval.ms", SET, "1")]),
    (32, "", [("consumer.session.timeout.ms", SET, "1")]),
    (0, "x", [("segment.ms", SET, "1")]),
    (3, "x", [("segment.ms", SET, "1")]),
]
GROUP_VALUES: list[tuple[str, str | None]] = [
    ("consumer.session.timeout.ms", "46000"),
    ("consumer.session.timeout.ms", "44999"),
    ("consumer.session.timeout.ms", "60001"),
    ("consumer.session.timeout.ms", "x"),
    ("consumer.heartbeat.interval.ms", "6000"),
    ("consumer.heartbeat.interval.ms", "4999"),
    ("consumer.assignment.interval.ms", "0"),
    ("consumer.assignment.interval.ms", "15001"),
    ("nonsense", "1"),
]
CHANGES: list[tuple[int, str, Keys]] = [
    *((32, "some", [(name, SET, value)]) for name, value in GROUP_VALUES),
    *((2, TOPIC, keys) for keys in TOPIC_CHANGES),
    *((4, name, [change]) for change in BROKER_CHANGES for name in ("1", "")),
    *OTHER_CHANGES,
]


def test_changes_are_taken_or_refused_with_the_same_code(kafka: WireClient) -> None:
    theirs = [_theirs(kafka, kind, name, keys) for kind, name, keys in CHANGES]

    async def story() -> list[ErrorCode]:
        world = await ConfigWorld().with_topic()
        return [
            (await world.change(kind, name, keys, validate_only=True))[0]
            for kind, name, keys in CHANGES
        ]

    ours = run(story)
    differing = [
        (change, expected, found)
        for change, expected, found in zip(CHANGES, theirs, ours, strict=True)
        if expected != found
    ]
    assert not differing


def _theirs(client: WireClient, kind: int, name: str, keys: Keys) -> int:
    configs = [
        single.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in keys
    ]
    resource = single.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = single.IncrementalAlterConfigsRequest(resources=[resource], validate_only=True)
    code: int = client.send(request, 1).responses[0].error_code
    return code


REPLACEMENTS: list[tuple[int, str, list[tuple[str, str | None]]]] = [
    (2, TOPIC, [("segment.ms", "5")]),
    (2, TOPIC, [("segment.ms", "0")]),
    (2, TOPIC, [("segment.ms", "5"), ("segment.ms", "6")]),
    (2, TOPIC, [("segment.ms", None)]),
    (2, TOPIC, [("nope", "5")]),
    (2, TOPIC, []),
    (2, "nope", [("segment.ms", "5")]),
    (4, "1", [("num.partitions", "5")]),
    (4, "1", [("max.connections", "x")]),
    (4, "1", [("max.connections", "500")]),
    (4, "7", []),
    (8, "1", [("root", "INFO")]),
]


def test_older_changes_are_taken_or_refused_with_the_same_code(kafka: WireClient) -> None:
    theirs = []
    for kind, name, configs in REPLACEMENTS:
        resource = whole.AlterConfigsResource(
            resource_type=kind,
            resource_name=name,
            configs=[whole.AlterableConfig(name=key, value=value) for key, value in configs],
        )
        request = whole.AlterConfigsRequest(resources=[resource], validate_only=True)
        theirs.append(kafka.send(request, 2).responses[0].error_code)

    async def story() -> list[ErrorCode]:
        world = await ConfigWorld().with_topic()
        return [(await world.replace(*one))[0] for one in REPLACEMENTS]

    assert run(story) == theirs


DESCRIPTIONS = [
    (2, "nope"),
    (2, ""),
    (2, "a b"),
    (4, "7"),
    (4, "x"),
    (4, ""),
    (8, ""),
    (8, "7"),
    (16, ""),
    (16, "some"),
    (32, ""),
    (32, "some"),
    (3, "x"),
    (0, "x"),
]


def test_descriptions_are_refused_with_the_same_code(kafka: WireClient) -> None:
    theirs = []
    for kind, name in DESCRIPTIONS:
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name, configuration_keys=None
        )
        request = DescribeConfigsRequest(resources=[resource])
        theirs.append(kafka.send(request, 4).results[0].error_code)
    world = ConfigWorld()
    ours = [world.describe_all([(*one, None)])[0].error_code for one in DESCRIPTIONS]
    assert ours == theirs


@pytest.mark.parametrize("types", [[], [2], [4, 8], [16], [32], [1]])
def test_the_same_resources_are_listed(kafka: WireClient, types: list[int]) -> None:
    theirs = kafka.send(ListConfigResourcesRequest(resource_types=types), 1)

    async def story() -> ListConfigResourcesResponse:
        return (await ConfigWorld().with_topic()).list_resources(*types)

    ours = run(story)
    assert ours.error_code == theirs.error_code
    listed = {(one.resource_type, one.resource_name) for one in ours.config_resources}
    assert listed == {(one.resource_type, one.resource_name) for one in theirs.config_resources}


def test_internal_keys_are_no_secret_of_ours() -> None:
    assert {name for name, key in TOPIC_KEYS.items() if key.is_internal} == {
        "internal.segment.bytes"
    }
