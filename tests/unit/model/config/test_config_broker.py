"""A broker's settings in force: what wins, what follows, and what may change."""

import math

import pytest

from millstream.broker.configs.broker_configs import REPORTED_MAX, BrokerConfigs
from millstream.broker.configs.entries import ConfigEntry, ConfigSource
from millstream.model.config.broker_keys import BROKER_KEYS, OWN_KEYS
from millstream.model.config.definition import Mode
from millstream.model.config.errors import InvalidConfig, InvalidConfigRequest
from millstream.model.config.inert_reasons import inert_broker_reason
from millstream.model.config.later_keys import LATER_KEYS
from millstream.model.config.topic_keys import TOPIC_KEYS
from millstream.model.ids import BrokerId
from millstream.model.limits import REQUEST_BYTES_MIN
from millstream.observe.log_format import FIELDS_ATTRIBUTE

HOUR_MS = 3_600_000
SHOWN_ONCE_SET = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)


def entry(configs: BrokerConfigs, name: str) -> ConfigEntry:
    return configs.describe_broker([name])[0]


def synonyms(one: ConfigEntry) -> list[tuple[str, str | None, int]]:
    return [(synonym.name, synonym.value, int(synonym.source)) for synonym in one.synonyms]


def test_a_key_is_obeyed_kept_for_later_or_refused_and_only_one_of_them() -> None:
    assert not set(BROKER_KEYS) & set(LATER_KEYS)
    for name in (*BROKER_KEYS, *LATER_KEYS):
        assert inert_broker_reason(name) is None, name
    assert set(BROKER_KEYS) >= OWN_KEYS
    assert all(key.documentation for key in BROKER_KEYS.values())


def test_every_default_obeys_its_own_rule() -> None:
    for key in (*BROKER_KEYS.values(), *LATER_KEYS.values(), *TOPIC_KEYS.values()):
        if key.default is not None:
            key.parse(key.default)


# -- precedence --------------------------------------------------------------------------------


def test_own_dynamic_wins_over_default_dynamic_over_file_over_default() -> None:
    name = "message.max.bytes"
    configs = BrokerConfigs({})
    assert configs.get_int(name) == 1_048_588
    configs = BrokerConfigs({name: "1"})
    assert configs.get_int(name) == 1
    configs.set_dynamic(broker={}, default={name: "2"})
    assert configs.get_int(name) == 2
    configs.set_dynamic(broker={name: "3"}, default={name: "2"})
    assert configs.get_int(name) == 3
    assert synonyms(entry(configs, name)) == [
        (name, "3", 2),
        (name, "2", 3),
        (name, "1", 4),
        (name, "1048588", 5),
    ]
    configs.set_dynamic(broker={}, default={})
    assert configs.get_int(name) == 1


@pytest.mark.parametrize(
    ("static", "retention_ms"),
    [
        ({}, 168 * HOUR_MS),
        ({"log.retention.hours": "1"}, HOUR_MS),
        ({"log.retention.hours": "1", "log.retention.minutes": "2"}, 120_000),
        ({"log.retention.minutes": "2", "log.retention.ms": "3"}, 3),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.ms": "-7"}, -1),
    ],
)
def test_finer_unit_of_retention_wins(static: dict[str, str], retention_ms: int) -> None:
    assert BrokerConfigs(static).log_config({}).retention_ms == retention_ms


def test_other_defaults_of_topics_follow_the_broker() -> None:
    configs = BrokerConfigs(
        {
            "log.roll.hours": "2",
            "log.roll.jitter.hours": "1",
            "log.flush.scheduler.interval.ms": "9",
        }
    )
    config = configs.log_config({})
    assert (config.segment_ms, config.segment_jitter_ms) == (2 * HOUR_MS, HOUR_MS)
    assert config.flush_ms == 9
    configs.set_dynamic(broker={"log.roll.ms": "5", "log.flush.interval.ms": "6"}, default={})
    assert (configs.log_config({}).segment_ms, configs.log_config({}).flush_ms) == (5, 6)


@pytest.mark.parametrize("name", [key.name for key in TOPIC_KEYS.values() if key.synonyms])
def test_broker_key_gives_the_topics_default_and_the_topic_wins(name: str) -> None:
    topic_key = TOPIC_KEYS[name]
    texts = {"cleanup.policy": ("compact", ""), "compression.type": ("gzip", "zstd")}
    texts["message.timestamp.type"] = ("LogAppendTime", "CreateTime")
    texts["min.cleanable.dirty.ratio"] = ("0.25", "0.75")
    texts["segment.bytes"] = ("2097152", "4194304")
    texts["unclean.leader.election.enable"] = ("true", "false")
    broker_text, topic_text = texts.get(topic_key.name, ("7", "8"))
    configs = BrokerConfigs({topic_key.synonyms[0]: broker_text})
    assert configs.topic_text({}, topic_key.name) == broker_text
    assert configs.topic_text({topic_key.name: topic_text}, topic_key.name) == topic_text


def test_log_directories_fall_back_to_the_single_one() -> None:
    assert BrokerConfigs({"log.dir": "one"}).get_list("log.dirs") == ["one"]
    assert BrokerConfigs({"log.dir": "one", "log.dirs": "a, b"}).get_list("log.dirs") == ["a", "b"]


def test_producers_expire_as_the_broker_says() -> None:
    configs = BrokerConfigs({"producer.id.expiration.ms": "5"})
    assert configs.log_config({}).producer_expiration_ms == 5


def test_cleaner_limits() -> None:
    assert BrokerConfigs({}).cleaner_limits().bytes_per_s == math.inf
    limits = BrokerConfigs(
        {
            "log.cleaner.io.max.bytes.per.second": "1000",
            "log.cleaner.dedupe.buffer.size": "2000000",
        }
    ).cleaner_limits()
    assert (limits.bytes_per_s, limits.key_map_bytes) == (1000.0, 2_000_000)


# -- reading -----------------------------------------------------------------------------------


def test_values_come_in_their_types() -> None:
    configs = BrokerConfigs({"listeners": "A://:1, B://:2", "pid.file": " x "})
    assert configs.get_bool("auto.create.topics.enable") is True
    assert configs.get_float("log.cleaner.min.cleanable.ratio") == 0.5
    assert configs.get_list("listeners") == ["A://:1", "B://:2"]
    assert configs.get_list("listener.security.protocol.map")[1] == "PLAINTEXT:PLAINTEXT"
    assert configs.get_list("max.connections.per.ip.overrides") == []
    assert configs.get_list("advertised.listeners") == []
    assert configs.get_text("pid.file") == "x"
    assert configs.get_text("broker.rack") == ""
    assert configs.get_text("num.partitions") == "1"
    assert configs.get_int("offsets.topic.num.partitions") == 50


def test_asking_for_the_wrong_type_is_an_error() -> None:
    configs = BrokerConfigs({})
    for read, name in (
        (configs.get_int, "listeners"),
        (configs.get_int, "auto.create.topics.enable"),
        (configs.get_bool, "num.partitions"),
        (configs.get_float, "num.partitions"),
        (configs.get_int, "there.is.none"),
    ):
        with pytest.raises(KeyError):
            read(name)


def test_keys_without_effect_are_shown_where_the_file_has_them() -> None:
    """Of Kafka's keys that never change only the names are known, and a bad value is none."""
    static = {"my.plugin": "1", "num.io.threads": "9", "process.roles": "broker"}
    configs = BrokerConfigs({**static, "num.network.threads": "many"})
    plugin, threads = configs.describe_broker(
        ["my.plugin", "num.io.threads", "process.roles", "num.network.threads", "log.preallocate"]
    )
    assert (plugin.key.name, plugin.value, plugin.key.is_sensitive) == ("my.plugin", None, True)
    assert (threads.key.name, threads.value) == ("num.io.threads", "9")


def test_a_rate_of_moves_is_shown_only_while_it_is_set() -> None:
    configs = BrokerConfigs({})
    for name in SHOWN_ONCE_SET:
        assert not configs.describe_broker([name])
        configs.set_dynamic(broker={name: "7"}, default={})
        (shown,) = configs.describe_broker([name])
        assert shown.value == "7"
        assert [(one.name, one.value) for one in shown.synonyms] == [(name, "7")]
        assert not configs.describe_default([name])
        configs.set_dynamic(broker={}, default={})
        assert not configs.describe_broker([name])


def test_that_a_setting_has_no_effect_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    configs = BrokerConfigs({})
    with caplog.at_level("WARNING"):
        for value in ("2", "3"):
            dynamic = {"num.io.threads": value, "log.retenton.ms": value, "log.roll.ms": value}
            configs.set_dynamic(broker=dynamic, default={"num.io.threads": "4"})
            configs.with_defaults({"num.io.threads": "5"})
    logged = [vars(one)[FIELDS_ATTRIBUTE] for one in caplog.records]
    assert [(one["name"], one["reason"]) for one in logged] == [
        ("log.retenton.ms", "the setting is unknown; did you mean log.retention.ms?"),
        ("num.io.threads", "one event loop serves all connections"),
    ]


def test_what_clients_can_have_logged_ends(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        BrokerConfigs({}).set_dynamic(
            broker={f"{number:050}": "1" for number in range(REPORTED_MAX + 50)}, default={}
        )
    assert len(caplog.records) == REPORTED_MAX


@pytest.mark.parametrize(
    "static",
    [
        {"num.partitions": "0"},
        {"log.retention.ms": "0"},
        {"log.retention.hours": "0"},
        {"log.roll.ms": "0"},
        {"max.connections": "0"},
        {"socket.request.max.bytes": str(REQUEST_BYTES_MIN - 1)},
        {"max.connections.per.ip": "0"},
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:0, ::1:0"},
        {"max.connections.per.ip.overrides": "localhost:5"},
        {"max.connections.per.ip.overrides": "10.0.0.1"},
        {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
        {"node.id": "1", "broker.id": "2"},
        {"node.id": "-1", "broker.id": "-5"},
        {"log.cleaner.io.max.bytes.per.second": "0"},
    ],
)
def test_broker_does_not_start_with_what_cannot_be(static: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        BrokerConfigs(static)


def test_addresses_may_have_their_own_limits() -> None:
    configs = BrokerConfigs(
        {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "10.0.0.1:5, ::1:7"}
    )
    assert configs.get_list("max.connections.per.ip.overrides") == ["10.0.0.1:5", "::1:7"]


@pytest.mark.parametrize(
    ("static", "broker_id"),
    [({}, 1), ({"broker.id": "7"}, 7), ({"node.id": "8"}, 8), ({"broker.id": "-1"}, 1)],
)
def test_both_names_of_the_id_are_one(static: dict[str, str], broker_id: int) -> None:
    configs = BrokerConfigs(static)
    assert configs.broker_id == broker_id
    assert configs.get_int("broker.id") == configs.get_int("node.id") == broker_id


def test_id_can_be_handed_in() -> None:
    assert BrokerConfigs({}, broker_id=BrokerId(5)).get_int("broker.id") == 5
    with pytest.raises(InvalidConfig, match="must be the same"):
        BrokerConfigs({"node.id": "4"}, broker_id=BrokerId(5))


# -- changes -----------------------------------------------------------------------------------


def test_subscribers_hear_of_a_change_when_it_is_so() -> None:
    configs = BrokerConfigs({})
    received = []
    configs.subscribe(lambda: received.append(configs.get_int("max.connections")))
    configs.set_dynamic(broker={"max.connections": "5"}, default={})
    configs.set_dynamic(broker={}, default={"max.connections": "6"})
    assert received == [5, 6]


def test_stored_setting_that_cannot_be_is_passed_over() -> None:
    configs = BrokerConfigs({})
    stored = {"max.connections": "many", "num.partitions": "7", "gone": "1"}
    configs.set_dynamic(broker={**stored, "message.max.bytes": "9"}, default=stored)
    assert configs.get_int("max.connections") == 2**31 - 1
    assert configs.get_int("num.partitions") == 1
    assert configs.get_int("message.max.bytes") == 9


def check(configs: BrokerConfigs, name: str, text: str, *, is_default: bool = False) -> None:
    configs.check_broker_configs({name: text}, former={}, is_default=is_default)


@pytest.mark.parametrize("name", BROKER_KEYS)
def test_only_dynamic_keys_can_change(name: str) -> None:
    key = BROKER_KEYS[name]
    text = "1" if key.default is None else key.default
    if key.mode is Mode.READ_ONLY:
        with pytest.raises(InvalidConfigRequest, match="cannot be changed while the broker runs"):
            check(BrokerConfigs({}), name, text)
    else:
        check(BrokerConfigs({}), name, text)
        check(BrokerConfigs({}), name, text, is_default=True)


def test_change_that_cannot_be_is_refused() -> None:
    configs = BrokerConfigs({"log.cleaner.max.compaction.lag.ms": "50"})
    with pytest.raises(InvalidConfigRequest, match=r"process\.roles cannot be changed"):
        check(configs, "process.roles", "broker")
    with pytest.raises(InvalidConfigRequest, match="double the current value 8"):
        check(configs, "num.io.threads", "17")
    with pytest.raises(InvalidConfigRequest, match=r"transactional\.id\.expiration\.ms cannot"):
        check(configs, "transactional.id.expiration.ms", "1")
    with pytest.raises(InvalidConfigRequest, match="'x'"):
        check(configs, "max.connections", "x")
    with pytest.raises(InvalidConfigRequest, match=r"must not be above max\.compaction\.lag"):
        check(configs, "log.cleaner.min.compaction.lag.ms", "51")
    with pytest.raises(InvalidConfigRequest, match="overrides"):
        check(configs, "max.connections.per.ip", "0", is_default=True)
    with pytest.raises(InvalidConfigRequest):
        check(configs, "max.connections", "0", is_default=True)


def test_change_looks_at_what_the_other_level_has() -> None:
    """Valid by itself, but not over what is set for all brokers."""
    configs = BrokerConfigs({})
    configs.set_dynamic(broker={}, default={"log.cleaner.max.compaction.lag.ms": "5"})
    with pytest.raises(InvalidConfigRequest):
        check(configs, "log.cleaner.min.compaction.lag.ms", "6")


def test_stored_key_of_another_version_does_not_stand_in_the_way() -> None:
    former = {"gone": "1"}
    BrokerConfigs({}).check_broker_configs(
        {"gone": "1", "max.connections": "5"}, former=former, is_default=False
    )


# -- descriptions ------------------------------------------------------------------------------


def test_value_is_described_with_where_it_comes_from() -> None:
    configs = BrokerConfigs({"num.partitions": " 3 "})
    one = entry(configs, "num.partitions")
    assert (one.value, one.source, one.is_read_only) == ("3", ConfigSource.STATIC_BROKER, True)
    assert synonyms(one) == [("num.partitions", " 3 ", 4), ("num.partitions", "1", 5)]
    assert not entry(configs, "max.connections").is_read_only


def test_units_of_one_time_are_synonyms_after_the_key_itself() -> None:
    configs = BrokerConfigs({"log.retention.hours": "5"})
    assert synonyms(entry(configs, "log.retention.ms")) == []
    assert entry(configs, "log.retention.ms").value is None
    assert synonyms(entry(configs, "log.retention.hours")) == [
        ("log.retention.hours", "5", 4),
        ("log.retention.hours", "168", 5),
    ]
    configs.set_dynamic(broker={"log.retention.ms": "9"}, default={})
    assert synonyms(entry(configs, "log.retention.ms")) == [
        ("log.retention.ms", "9", 2),
        ("log.retention.hours", "5", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_topic_describes_its_own_value_over_the_brokers() -> None:
    configs = BrokerConfigs({"log.segment.bytes": "2097152"})
    own = configs.describe_topic({"segment.bytes": " 4194304"}, ["segment.bytes"])[0]
    assert (own.value, own.source) == ("4194304", ConfigSource.TOPIC)
    assert synonyms(own) == [
        ("segment.bytes", "4194304", 1),
        ("log.segment.bytes", "2097152", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]
    without = configs.describe_topic({}, ["segment.bytes"])[0]
    assert (without.value, without.source) == ("2097152", ConfigSource.STATIC_BROKER)
    assert not without.is_read_only


def test_default_of_all_brokers_is_described_alone() -> None:
    configs = BrokerConfigs({"max.connections": "1"})
    assert configs.describe_default(None) == []
    configs.set_dynamic(broker={"max.connections": "3"}, default={"max.connections": "2"})
    (only,) = configs.describe_default(None)
    assert (only.value, only.source) == ("2", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    assert synonyms(only) == [("max.connections", "2", 3)]


def test_internal_key_is_not_shown() -> None:
    names = [one.key.name for one in BrokerConfigs({}).describe_topic({}, None)]
    assert "segment.bytes" in names
    assert "internal.segment.bytes" not in names
