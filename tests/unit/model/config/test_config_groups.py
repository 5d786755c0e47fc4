"""Settings of single groups (the configuration resource GROUP), as Kafka 4.3 has them."""

import pytest

from kits.broker.config_kit import APPEND, DELETE, SET, ConfigWorld, code
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.configs.group_configs import configs_of
from millstream.controller.cluster import nodes
from millstream.controller.cluster.errors import DamagedNode
from millstream.controller.store import broker_configs_file
from millstream.model.config.errors import InvalidConfig
from millstream.model.config.resources import ResourceType
from millstream.testing.sim import virtual_loop
from millstream.wire.errors import ErrorCode

GROUP = ResourceType.GROUP
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT = "consumer.assignment.interval.ms"
NONE, INVALID_CONFIG = ErrorCode.NONE, ErrorCode.INVALID_CONFIG
STATIC, DEFAULT, OWN = 4, 5, 8


def test_group_without_settings_shows_the_brokers() -> None:
    world = ConfigWorld({"group.consumer.session.timeout.ms": "50000"})
    shown = world.describe(GROUP, "any")
    assert {name: (one.value, one.config_source) for name, one in shown.items()} == {
        ASSIGNMENT: ("1000", DEFAULT),
        HEARTBEAT: ("5000", DEFAULT),
        SESSION: ("50000", STATIC),
    }
    assert not any(one.read_only for one in shown.values())


@pytest.mark.parametrize("name", ["g", "a/b", "ünï", "x" * 5000, "group:1", "7", " "])
def test_what_is_set_is_shown_kept_and_listed(name: str) -> None:
    async def story() -> None:
        world = ConfigWorld()
        done = await world.change(GROUP, name, [(SESSION, SET, "46000"), (HEARTBEAT, SET, "6000")])
        assert done == (NONE, None)
        for is_restarted in (False, True):
            one = world
            if is_restarted:
                world.disk.kill()
                one = ConfigWorld(disk=world.disk.after_kill())
            shown = one.describe(GROUP, name)
            assert (shown[SESSION].value, shown[SESSION].config_source) == ("46000", OWN)
            assert [(s.name, s.value, s.source) for s in shown[HEARTBEAT].synonyms] == [
                (HEARTBEAT, "6000", OWN),
                (f"group.{HEARTBEAT}", "5000", DEFAULT),
            ]
            assert shown[ASSIGNMENT].config_source == DEFAULT
            listed = one.list_resources(GROUP).config_resources
            assert [(each.resource_type, each.resource_name) for each in listed] == [(GROUP, name)]
            assert one.describe(GROUP, "other")[SESSION].config_source == DEFAULT

    virtual_loop.run(story)


def test_settings_of_groups_are_not_a_brokers() -> None:
    async def story() -> None:
        world = ConfigWorld()
        before = world.list_resources(ResourceType.BROKER).config_resources
        await world.change(GROUP, "1", [(SESSION, SET, "46000")])
        assert world.configs.get_int("group.consumer.session.timeout.ms") == 45000
        assert world.list_resources(ResourceType.BROKER).config_resources == before
        assert "consumer.session.timeout.ms" not in world.describe(ResourceType.BROKER, "1")

    virtual_loop.run(story)


def test_removed_settings_are_the_brokers_again() -> None:
    async def story() -> None:
        world = ConfigWorld()
        await world.change(GROUP, "g", [(SESSION, SET, "46000"), (HEARTBEAT, SET, "6000")])
        await world.change(GROUP, "g", [(SESSION, DELETE, None)])
        shown = world.describe(GROUP, "g")
        assert (shown[SESSION].config_source, shown[HEARTBEAT].config_source) == (DEFAULT, OWN)
        assert await world.replace(GROUP, "g", [(SESSION, "47000")]) == (NONE, None)
        shown = world.describe(GROUP, "g")
        assert (shown[SESSION].value, shown[HEARTBEAT].config_source) == ("47000", DEFAULT)
        assert await world.replace(GROUP, "g", []) == (NONE, None)
        assert world.list_resources(GROUP).config_resources == []

    virtual_loop.run(story)


@pytest.mark.parametrize(
    ("name", "key", "operation", "value", "expected"),
    [
        ("", SESSION, SET, "46000", ErrorCode.INVALID_REQUEST),
        ("g", SESSION, SET, "44999", INVALID_CONFIG),
        ("g", SESSION, SET, "60001", INVALID_CONFIG),
        ("g", SESSION, SET, "x", INVALID_CONFIG),
        ("g", SESSION, APPEND, "46000", INVALID_CONFIG),
        ("g", HEARTBEAT, SET, "4999", INVALID_CONFIG),
        ("g", HEARTBEAT, SET, "15001", INVALID_CONFIG),
        ("g", ASSIGNMENT, SET, "-1", INVALID_CONFIG),
        ("g", ASSIGNMENT, SET, "15001", INVALID_CONFIG),
        ("g", ASSIGNMENT, SET, "0", NONE),
        ("g", "share.session.timeout.ms", SET, "45000", INVALID_CONFIG),
        ("g", "streams.session.timeout.ms", SET, "45000", INVALID_CONFIG),
        ("g", "nonsense", SET, "1", INVALID_CONFIG),
        ("g", SESSION, SET, None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_bad_settings_are_refused_and_nothing_is_changed(
    name: str, key: str, operation: int, value: str | None, expected: ErrorCode
) -> None:
    async def story() -> None:
        world = ConfigWorld()
        found, text = await world.change(GROUP, name, [(key, operation, value)])
        assert found == expected
        assert bool(text) == (expected is not NONE)
        assert bool(world.controller.image.broker_configs) == (expected is NONE)

    virtual_loop.run(story)


def test_session_must_be_longer_than_the_time_between_heartbeats() -> None:
    async def story() -> None:
        world = ConfigWorld({"group.consumer.min.session.timeout.ms": "5000"})
        found, text = await world.change(
            GROUP, "g", [(SESSION, SET, "6000"), (HEARTBEAT, SET, "6000")]
        )
        assert found == INVALID_CONFIG
        assert "consumer.heartbeat.interval.ms, which is 6000" in str(text)

    virtual_loop.run(story)


def test_check_alone_changes_nothing() -> None:
    async def story() -> None:
        world = ConfigWorld()
        keys = [(SESSION, SET, "46000")]
        assert await world.change(GROUP, "g", list(keys), validate_only=True) == (NONE, None)
        assert configs_of(world.controller.image, "g") == {}

    virtual_loop.run(story)


def test_limits_that_came_later_bound_what_is_used() -> None:
    configs = BrokerConfigs({"group.consumer.max.session.timeout.ms": "50000"})
    assert configs.group_int({SESSION: "60000"}, SESSION) == 50000
    assert configs.group_int({SESSION: "1"}, SESSION) == 45000
    assert configs.group_int({SESSION: "bad"}, SESSION) == 45000
    assert configs.group_int({}, SESSION) == 45000


@pytest.mark.parametrize(
    "static",
    [
        {"group.min.session.timeout.ms": "9000", "group.max.session.timeout.ms": "8000"},
        {"group.consumer.session.timeout.ms": "44000"},
        {"group.consumer.session.timeout.ms": "61000"},
        {"group.consumer.heartbeat.interval.ms": "4000"},
        {"group.consumer.heartbeat.interval.ms": "16000"},
        {"group.consumer.assignment.interval.ms": "16000"},
        {
            "group.consumer.min.session.timeout.ms": "5000",
            "group.consumer.session.timeout.ms": "5000",
        },
        {"group.consumer.assignors": ""},
        {"group.consumer.assignors": "uniform,mine"},
        {"group.consumer.migration.policy": "sideways"},
        {"group.coordinator.rebalance.protocols": "consumer"},
        {"group.coordinator.append.linger.ms": "-2"},
    ],
)
def test_broker_settings_that_contradict_each_other_are_refused(static: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        BrokerConfigs(static)


@pytest.mark.parametrize("name", ["", "7", "group:g", "group:a/b", "group:" + "é" * 300])
def test_name_of_settings_survives_the_tree_and_the_disk(name: str) -> None:
    node = nodes.broker_configs_path(name).removeprefix(nodes.BROKER_CONFIGS + "/")
    assert "/" not in node
    assert nodes.config_name(node) == name
    file = broker_configs_file(name)
    assert "/" not in file
    assert len(file) < 100


def test_node_that_names_no_group_is_damaged() -> None:
    with pytest.raises(DamagedNode):
        nodes.config_name("group:*")


def test_change_in_a_cluster_is_kept_under_the_groups_name() -> None:
    """The controller of a cluster takes the same names."""
    from millstream.controller.image import is_config_name

    assert [is_config_name(name) for name in ("", "3", "group:x", "group:", "x", "-1")] == [
        True,
        True,
        True,
        False,
        False,
        False,
    ]
    assert code(0) is NONE
