"""The four configuration requests, over a real controller.

DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.
"""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from kits.broker.config_kit import APPEND, DELETE, SET, SUBTRACT, TOPIC, ConfigWorld, Keys
from kits.broker.versions import versions_of
from kits.controller.controller_kit import run
from millstream.broker.handlers import (
    describe_configs,
)
from millstream.model.config.broker_keys import BROKER_KEYS
from millstream.model.config.resources import ResourceType
from millstream.model.config.topic_keys import TOPIC_KEYS
from millstream.model.limits import CONFIG_KEYS_PER_RESOURCE_MAX
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.background import SimBackground
from millstream.testing.sim.trace import Trace
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)

ME = "1"
NONE, INVALID_CONFIG = ErrorCode.NONE, ErrorCode.INVALID_CONFIG
INVALID_REQUEST = ErrorCode.INVALID_REQUEST


LOGGER = "millstream.broker.configs"


@pytest.fixture
def levels() -> Iterator[None]:
    """What a test changes is put back: loggers are the process's."""
    before = {name: logging.getLogger(name).level for name in ("", LOGGER)}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


# -- describe ----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions_of(describe_configs))
def test_every_version_describes_a_topic_and_a_broker(version: int) -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        topic, broker = world.describe_all(
            [(ResourceType.TOPIC, TOPIC, None), (ResourceType.BROKER, ME, None)],
            version=version,
            documentation=version >= 3,
        )
        for resource, keys in ((topic, TOPIC_KEYS), (broker, BROKER_KEYS)):
            shown = [name for name, key in keys.items() if key.is_always_shown]
            assert [one.name for one in resource.configs] == shown
        for one in (*topic.configs, *broker.configs):
            key = TOPIC_KEYS.get(one.name) or BROKER_KEYS[one.name]
            assert one.config_type == (key.type if version >= 3 else 0)
            assert bool(one.documentation) == (version >= 3)

    run(story)


def test_synonyms_and_documentation_come_only_when_asked_for() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        asked: list[tuple[int, str, list[str] | None]] = [
            (ResourceType.TOPIC, TOPIC, ["segment.bytes"])
        ]
        (with_all,) = world.describe_all(asked, documentation=True)[0].configs
        (without,) = world.describe_all(asked, synonyms=False)[0].configs
        assert [one.name for one in with_all.synonyms] == ["log.segment.bytes"]
        assert with_all.documentation == TOPIC_KEYS["segment.bytes"].documentation
        assert without.synonyms == []
        assert without.documentation is None

    run(story)


def test_keys_that_are_not_there_are_left_out_and_no_keys_mean_all() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        assert list(world.describe(ResourceType.TOPIC, TOPIC, ["nope", "segment.ms"])) == [
            "segment.ms"
        ]
        everything = world.describe(ResourceType.TOPIC, TOPIC, None)
        assert world.describe(ResourceType.TOPIC, TOPIC, []) == everything

    run(story)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (ResourceType.TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (ResourceType.TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (ResourceType.BROKER, "", NONE),
        (ResourceType.BROKER, "7", INVALID_REQUEST),
        (ResourceType.BROKER, "x", INVALID_REQUEST),
        (ResourceType.BROKER, "٣", INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "", INVALID_REQUEST),
        (ResourceType.BROKER_LOGGER, "7", INVALID_REQUEST),
        (ResourceType.CLIENT_METRICS, "", INVALID_REQUEST),
        (ResourceType.CLIENT_METRICS, "some", NONE),
        (ResourceType.GROUP, "", INVALID_REQUEST),
    ],
)
def test_resource_is_described_or_refused_with_kafkas_code(
    kind: ResourceType, name: str, code: ErrorCode
) -> None:
    result = ConfigWorld().describe_all([(kind, name, None)])[0]
    assert (result.error_code, result.resource_type, result.resource_name) == (code, kind, name)
    assert result.configs == []
    assert bool(result.error_message) == (code is not NONE)


def test_unknown_type_fails_the_whole_describe_request() -> None:
    results = ConfigWorld().describe_all([(3, "x", None), (ResourceType.BROKER, ME, None)])
    assert [one.error_code for one in results] == [INVALID_REQUEST] * 2
    assert [one.configs for one in results] == [[], []]


# -- change a topic ----------------------------------------------------------------------------


def test_topic_key_is_set_seen_and_removed() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        assert await world.change(2, TOPIC, [("segment.ms", SET, "5")]) == (NONE, None)
        shown = world.describe(2, TOPIC)["segment.ms"]
        assert (shown.value, shown.config_source) == ("5", 1)
        assert await world.change(2, TOPIC, [("retention.ms", SET, "6")]) == (NONE, None)
        assert world.topic_value("segment.ms") == "5"
        assert await world.change(2, TOPIC, [("segment.ms", DELETE, None)]) == (NONE, None)
        assert dict(world.controller.image.topics[TOPIC].configs) == {"retention.ms": "6"}

    run(story)


def test_lists_are_added_to_and_cut() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        steps: list[tuple[int, str, str]] = [
            (APPEND, "compact", "delete,compact"),
            (APPEND, "compact", "delete,compact"),
            (SUBTRACT, "delete", "compact"),
            (SUBTRACT, "delete,compact", ""),
        ]
        for operation, value, after in steps:
            assert await world.change(2, TOPIC, [("cleanup.policy", operation, value)]) == (
                NONE,
                None,
            )
            assert world.topic_value("cleanup.policy") == after

    run(story)


BAD_KEYS: list[tuple[Keys, ErrorCode]] = [
    ([("nope", SET, "1")], INVALID_CONFIG),
    ([("preallocate", SET, "perhaps")], INVALID_CONFIG),
    ([("remote.storage.enable", SET, "true")], INVALID_CONFIG),
    ([("segment.bytes", SET, "100")], INVALID_CONFIG),
    ([("segment.ms", SET, "5"), ("retention.ms", SET, "x")], INVALID_CONFIG),
    ([("segment.ms", APPEND, "5")], INVALID_CONFIG),
    ([("nope", APPEND, "5")], INVALID_CONFIG),
    ([("cleanup.policy", APPEND, "foo")], INVALID_CONFIG),
    ([("segment.ms", SET, "5"), ("segment.ms", SET, "6")], INVALID_REQUEST),
    ([("segment.ms", SET, None)], INVALID_REQUEST),
    ([("segment.ms", 7, "5")], INVALID_REQUEST),
]


@pytest.mark.parametrize(("keys", "code"), BAD_KEYS)
def test_topic_change_is_refused_as_a_whole(keys: Keys, code: ErrorCode) -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        found, text = await world.change(2, TOPIC, keys)
        assert found == code
        assert text is not None
        assert keys[-1][0] in text
        assert not world.controller.image.topics[TOPIC].configs

    run(story)


@pytest.mark.usefixtures("levels")
def test_validate_only_checks_and_changes_nothing() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        level = logging.getLogger(LOGGER).level
        for kind, name, key, value in (
            (2, TOPIC, "segment.ms", "5"),
            (4, ME, "max.connections", "5"),
            (8, ME, LOGGER, "FATAL"),
        ):
            done = await world.change(kind, name, [(key, SET, value)], validate_only=True)
            assert done == (NONE, None)
        assert not world.controller.image.topics[TOPIC].configs
        assert not world.controller.image.broker_configs
        assert logging.getLogger(LOGGER).level == level
        bad, _ = await world.change(2, TOPIC, [("segment.ms", SET, "0")], validate_only=True)
        assert bad == INVALID_CONFIG

    run(story)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (2, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, "", INVALID_REQUEST),
        (2, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (4, "7", INVALID_REQUEST),
        (4, "x", INVALID_REQUEST),
        (8, "7", INVALID_REQUEST),
        (8, "", INVALID_REQUEST),
        (16, "", INVALID_REQUEST),
        (16, "some", INVALID_CONFIG),
        (32, "", INVALID_REQUEST),
        (32, "some", INVALID_CONFIG),
        (0, "x", INVALID_REQUEST),
        (3, "x", INVALID_REQUEST),
    ],
)
def test_resource_that_cannot_change_has_kafkas_code(kind: int, name: str, code: ErrorCode) -> None:
    async def story() -> None:
        found, text = await ConfigWorld().change(kind, name, [("segment.ms", SET, "5")])
        assert found == code
        assert text

    run(story)


def test_resources_fail_one_by_one_and_twice_the_same_fails_both() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        good: Keys = [("segment.ms", SET, "5")]
        response = await world.incremental([(2, "nope", good), (2, TOPIC, good), (4, "7", good)])
        codes = [one.error_code for one in response.responses]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NONE, INVALID_REQUEST]
        assert world.topic_value("segment.ms") == "5"
        twice = await world.incremental([(2, TOPIC, [("segment.ms", SET, "7")]), (2, TOPIC, good)])
        assert [one.error_code for one in twice.responses] == [INVALID_REQUEST] * 2
        assert world.topic_value("segment.ms") == "5"

    run(story)


def test_two_changes_at_the_same_time_lose_nothing() -> None:
    """Each is worked out from what the other left, although both wait for the disk."""

    async def story() -> None:
        background = SimBackground(
            asyncio.get_running_loop(), SeededRandomness(1), Trace(), work_delay_s=(1.0, 2.0)
        )
        world = await ConfigWorld(background=background).with_topic()
        names = ["segment.ms", "retention.ms", "flush.ms", "delete.retention.ms"]
        await asyncio.gather(
            *(world.change(2, TOPIC, [(name, SET, "5")]) for name in names),
            *(
                world.change(4, ME, [(name, SET, "5")])
                for name in ("log.roll.ms", "max.connections")
            ),
        )
        assert set(world.controller.image.topics[TOPIC].configs) == set(names)
        assert set(world.controller.image.broker_configs[ME]) == {"log.roll.ms", "max.connections"}

    run(story)


# -- change a broker ---------------------------------------------------------------------------


def test_broker_setting_is_in_force_at_once_and_after_a_restart() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        assert await world.change(4, ME, [("log.roll.ms", SET, "5")]) == (NONE, None)
        assert world.configs.log_config({}).segment_ms == 5
        assert world.topic_value("segment.ms") == "5"
        shown = world.describe(4, ME)["log.roll.ms"]
        assert (shown.value, shown.config_source, shown.read_only) == ("5", 2, False)
        world.controller.close()
        assert ConfigWorld(disk=world.disk).configs.log_config({}).segment_ms == 5

    run(story)


def test_default_of_all_brokers_is_below_the_brokers_own() -> None:
    async def story() -> None:
        world = ConfigWorld()
        assert await world.change(4, "", [("max.connections", SET, "6")]) == (NONE, None)
        assert world.configs.get_int("max.connections") == 6
        assert await world.change(4, ME, [("max.connections", SET, "5")]) == (NONE, None)
        assert world.configs.get_int("max.connections") == 5
        assert list(world.describe(4, "")) == ["max.connections"]
        assert await world.change(4, ME, [("max.connections", DELETE, None)]) == (NONE, None)
        assert world.configs.get_int("max.connections") == 6

    run(story)


@pytest.mark.parametrize("name", [ME, ""])
@pytest.mark.parametrize(
    ("key", "operation", "value", "code"),
    [
        ("num.partitions", SET, "3", INVALID_REQUEST),
        ("listeners", SET, "PLAINTEXT://:1", INVALID_REQUEST),
        ("log.retention.ms", SET, "x", INVALID_REQUEST),
        ("log.retention.ms", SET, "0", INVALID_REQUEST),
        ("log.segment.bytes", SET, "5", INVALID_REQUEST),
        ("max.connections.per.ip.overrides", SET, "foo", INVALID_REQUEST),
        ("max.connections", APPEND, "1", INVALID_CONFIG),
        ("nope", APPEND, "1", INVALID_CONFIG),
        ("nope", SET, "1", NONE),
        ("num.io.threads", SET, "1", INVALID_REQUEST),
        ("num.io.threads", SET, "4", NONE),
        ("num.replica.fetchers", SET, "2", NONE),
        ("process.roles", SET, "broker", INVALID_REQUEST),
        ("cordoned.log.dirs", SET, "/data", INVALID_REQUEST),
        ("metric.reporters", SET, "my.Reporter", INVALID_REQUEST),
        ("unclean.leader.election.enable", SET, "true", NONE),
        ("nope", DELETE, None, NONE),
        ("num.partitions", DELETE, None, NONE),
        ("log.cleanup.policy", APPEND, "compact", NONE),
    ],
)
def test_broker_change_has_kafkas_code(
    name: str, key: str, operation: int, value: str | None, code: ErrorCode
) -> None:
    async def story() -> None:
        found, _ = await ConfigWorld().change(4, name, [(key, operation, value)])
        assert found == code

    run(story)


def test_replicas_in_sync_are_asked_for_by_all_brokers_alike() -> None:
    """KIP-966, as in Kafka: the leader and the controller must know the same minimum."""

    async def story() -> None:
        world = ConfigWorld()
        minimum = "min.insync.replicas"
        changes: list[Keys] = [[(minimum, SET, "1")], [(minimum, DELETE, None)]]
        for keys in changes:
            found, text = await world.change(4, ME, keys)
            assert found == INVALID_CONFIG
            assert text
        assert (await world.replace(4, ME, [(minimum, "1")]))[0] == INVALID_CONFIG
        assert await world.change(4, "", [(minimum, SET, "2")]) == (NONE, None)
        assert world.configs.get_int(minimum) == 2

    run(story)


def test_a_number_of_threads_grows_step_by_step() -> None:
    """As in Kafka: at most to the double of what it is, which is the broker's own value."""

    async def story() -> None:
        world = ConfigWorld()
        for value, code in (
            ("16", NONE),
            ("33", INVALID_REQUEST),
            ("32", NONE),
            ("15", INVALID_REQUEST),
        ):
            found, _ = await world.change(4, ME, [("num.io.threads", SET, value)])
            assert (value, found) == (value, code)

    run(story)


def test_settings_that_nobody_knows_end() -> None:
    async def story() -> None:
        world = ConfigWorld()
        half = CONFIG_KEYS_PER_RESOURCE_MAX // 2 + 1
        first: Keys = [(f"a{number}", SET, "1") for number in range(half)]
        more: Keys = [(f"b{number}", SET, "1") for number in range(half)]
        assert (await world.change(4, ME, first))[0] == NONE
        assert (await world.change(4, ME, more))[0] == INVALID_REQUEST
        assert len(world.controller.image.broker_configs[ME]) == half

    run(story)


def test_a_minimum_that_a_broker_had_from_before_can_be_removed() -> None:
    async def story() -> None:
        world = ConfigWorld()
        await world.controller.alter_broker_configs(ME, {"min.insync.replicas": "1"})
        keys: Keys = [("min.insync.replicas", DELETE, None)]
        assert await world.change(4, ME, keys) == (NONE, None)
        assert not world.controller.image.broker_configs

    run(story)


def test_an_unknown_topic_setting_says_which_one_was_meant() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        _, text = await world.change(2, TOPIC, [("Retention_ms", SET, "1")])
        assert text == "unknown topic config name: Retention_ms; did you mean retention.ms?"
        _, text = await world.change(2, TOPIC, [("nope", SET, "1")])
        assert text == "unknown topic config name: nope"
        _, text = await world.change(32, "some", [("consumer.session.timeout", SET, "1")])
        assert text is not None
        assert text.endswith("; did you mean consumer.session.timeout.ms?")

    run(story)


# -- the older request -------------------------------------------------------------------------


def test_older_request_replaces_everything() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        await world.replace(2, TOPIC, [("segment.ms", "5"), ("flush.ms", "5")])
        assert await world.replace(2, TOPIC, [("retention.ms", "6")]) == (NONE, None)
        assert dict(world.controller.image.topics[TOPIC].configs) == {"retention.ms": "6"}
        await world.replace(4, ME, [("max.connections", "5")])
        assert await world.replace(4, ME, []) == (NONE, None)
        assert not world.controller.image.broker_configs

    run(story)


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (2, TOPIC, [("segment.ms", None)], INVALID_REQUEST),
        (2, TOPIC, [("segment.ms", "5"), ("segment.ms", "6")], INVALID_REQUEST),
        (2, TOPIC, [("nope", "5")], INVALID_CONFIG),
        (2, "nope", [("segment.ms", "5")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (4, "7", [], INVALID_REQUEST),
        (4, ME, [("num.partitions", "5")], INVALID_REQUEST),
        (8, ME, [("root", "INFO")], INVALID_REQUEST),
        (0, "x", [], INVALID_REQUEST),
    ],
)
def test_older_request_is_refused_with_kafkas_code(
    kind: int, name: str, configs: list[tuple[str, str | None]], code: ErrorCode
) -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        found, text = await world.replace(kind, name, configs)
        assert found == code
        assert text

    run(story)


# -- loggers -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("levels")
def test_level_is_set_seen_and_removed() -> None:
    async def story() -> None:
        world = ConfigWorld()
        assert await world.change(8, ME, [(LOGGER, SET, "DEBUG")]) == (NONE, None)
        assert logging.getLogger(LOGGER).isEnabledFor(logging.DEBUG)
        shown = world.describe(8, ME)[LOGGER]
        assert (shown.value, shown.config_source, shown.read_only) == ("DEBUG", 6, False)
        assert "root" in world.describe(8, ME)
        assert await world.change(8, ME, [(LOGGER, DELETE, None)]) == (NONE, None)
        assert logging.getLogger(LOGGER).level == logging.NOTSET

    run(story)


@pytest.mark.usefixtures("levels")
@pytest.mark.parametrize(
    ("key", "operation", "value", "code"),
    [
        (LOGGER, SET, "debug", INVALID_CONFIG),
        (LOGGER, SET, "LOUD", INVALID_CONFIG),
        (LOGGER, APPEND, "DEBUG", INVALID_REQUEST),
        (LOGGER, SUBTRACT, "DEBUG", INVALID_REQUEST),
        ("millstream.no.such", SET, "DEBUG", INVALID_CONFIG),
        ("root", DELETE, None, INVALID_REQUEST),
    ],
)
def test_level_that_cannot_be_is_refused_and_nothing_changes(
    key: str, operation: int, value: str | None, code: ErrorCode
) -> None:
    async def story() -> None:
        other = "millstream.broker"
        before = logging.getLogger(other).level
        logging.getLogger(other)
        keys: Keys = [(other, SET, "FATAL"), (key, operation, value)]
        found, _ = await ConfigWorld().change(8, ME, keys)
        assert found == code
        assert logging.getLogger(other).level == before

    run(story)


# -- list --------------------------------------------------------------------------------------


def test_resources_are_listed_by_type() -> None:
    async def story() -> None:
        world = await ConfigWorld().with_topic()
        found = [
            (one.resource_type, one.resource_name)
            for one in world.list_resources().config_resources
        ]
        assert found == [(2, TOPIC), (4, ME), (8, ME)]
        only = world.list_resources(ResourceType.TOPIC).config_resources
        assert [one.resource_name for one in only] == [TOPIC]
        assert world.list_resources(ResourceType.GROUP, 16).config_resources == []
        assert world.list_resources(version=0).config_resources == []
        assert world.list_resources(1).error_code == ErrorCode.UNSUPPORTED_VERSION

    run(story)


# -- a failure of the whole request ------------------------------------------------------------


def test_failed_request_says_so_for_every_resource() -> None:
    request = DescribeConfigsRequest(
        resources=[DescribeConfigsResource(resource_type=2, resource_name="a")]
    )
    (result,) = describe_configs.failed(request, ErrorCode.KAFKA_STORAGE_ERROR, 4).results
    assert (result.error_code, result.resource_name) == (ErrorCode.KAFKA_STORAGE_ERROR, "a")
    assert result.error_message == ErrorCode.KAFKA_STORAGE_ERROR.text
