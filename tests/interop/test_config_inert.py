"""Settings that do nothing here are taken, refused and shown as Kafka does.

Tools keep a cluster's settings by writing and reading them back: what Kafka keeps must be kept.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.broker.config_kit import APPEND, DELETE, SET, TOPIC, ConfigWorld, Keys
from kits.controller.controller_kit import run
from kits.interop.waiting import wait_for
from kits.process.wire_client import WireClient
from millstream.model.config.broker_keys import BROKER_KEYS
from millstream.model.config.inert_keys import INERT_BROKER_KEYS
from millstream.model.config.inert_reasons import INERT_TOPIC_REASONS
from millstream.model.config.later_keys import LATER_KEYS
from millstream.testing.peers.kafka import ApacheKafka
from millstream.wire.messages import incremental_alter_configs as single
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
)

pytestmark = pytest.mark.interop

STATIC = {
    "my.plugin": "secret",
    "log.preallocate": "TRUE",
    "num.io.threads": "2",
    "num.network.threads": "2",
}
THROTTLES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
REFUSED_HERE = {"cordoned.log.dirs"}
"""Partitions would be placed where it was forbidden."""
DEFAULT = 5
Facts = dict[str, tuple[object, ...]]


@pytest.fixture(scope="module")
def kafka(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WireClient]:
    directory = tmp_path_factory.mktemp("kafka")
    with (
        ApacheKafka(directory, jars=jars, settings=STATIC) as server,
        WireClient(server.bootstrap_servers) as client,
    ):
        client.create_topic(TOPIC)
        yield client


def change(client: WireClient, kind: int, name: str, keys: Keys, *, validate: bool) -> int:
    configs = [
        single.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in keys
    ]
    resource = single.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = single.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate)
    code: int = client.send(request, 1).responses[0].error_code
    return code


def facts(shown: dict[str, DescribeConfigsResourceResult]) -> Facts:
    return {
        name: (
            one.value,
            one.config_type,
            one.config_source,
            one.read_only,
            one.is_sensitive,
            tuple((synonym.name, synonym.value, synonym.source) for synonym in one.synonyms),
        )
        for name, one in shown.items()
    }


def shown(client: WireClient, kind: int, name: str, keys: list[str] | None) -> Facts:
    resource = DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=keys
    )
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
    (result,) = client.send(request, 4).results
    return facts({one.name: one for one in result.configs})


def values_of(name: str) -> list[str]:
    """A few that are in their rules or not, above all Kafka's default."""
    default = INERT_BROKER_KEYS[name].default
    return [*([default] if default is not None else []), "some", "-1", "0", "1", "3", ""]


def to(name: str, value: str) -> Keys:
    """The setting is given this value."""
    return [(name, SET, value)]


BROKER_CHANGES: list[Keys] = [
    *(to(name, value) for name in INERT_BROKER_KEYS for value in values_of(name)),
    *(to(name, "1") for name in ("nope", "my.password", "", "listener.name.plaintext")),
    *(to(name, "1") for name in ("inter.broker.protocol.version", "internal.segment.bytes")),
    *(to(name, "3") for name in ("num.io.threads", "num.io.thread")),
    *(to("num.io.threads", value) for value in ("4", "5")),
    *(to("background.threads", value) for value in ("4", "5", "20", "21")),
    [("nope", APPEND, "1")],
    [("nope", DELETE, None)],
    [("log.cleaner.threads", APPEND, "1")],
    [("ssl.cipher.suites", APPEND, "a")],
    [("ssl.cipher.suites", SET, "a,,b")],
    [("message.max.bytes", SET, "100"), ("nope", SET, "3")],
    [("message.max.bytes", SET, "x"), ("nope", SET, "3")],
    [("nope", SET, "3"), ("node.id", SET, "3")],
    *(
        to(f"listener.name.plaintext.{base}", value)
        for base in (
            "ssl.keystore.location",
            "ssl.keystore.password",
            "max.connections",
            "num.network.threads",
            "plain.sasl.jaas.config",
            "log.retention.ms",
            "nope",
        )
        for value in ("3", "x")
    ),
]
TOPIC_CHANGES: list[Keys] = [
    *(
        to(name, value)
        for name in INERT_TOPIC_REASONS
        for value in ("true", "false", "-3", "-2", "-1", "5", "x", "")
    ),
    [("internal.segment.bytes", SET, "100")],
    [("internal.segment.bytes", SET, "x")],
    [("internal.nope", SET, "1")],
    [("preallocate", APPEND, "true")],
]
CHANGES: list[tuple[int, str, Keys]] = [
    *((4, name, keys) for keys in BROKER_CHANGES for name in ("1", "")),
    *((2, TOPIC, keys) for keys in TOPIC_CHANGES),
]


def test_keys_without_effect_are_taken_or_refused_with_the_same_code(kafka: WireClient) -> None:
    changes = [one for one in CHANGES if not {key for key, *_ in one[2]} & REFUSED_HERE]
    theirs = [change(kafka, *one, validate=True) for one in changes]

    async def story() -> list[int]:
        world = await ConfigWorld(STATIC).with_topic()
        return [(await world.change(*one, validate_only=True))[0] for one in changes]

    ours = run(story)
    differing = [one for one in zip(changes, theirs, ours, strict=True) if one[1] != one[2]]
    assert not differing


def test_what_kafka_reads_at_its_start_only_cannot_be_changed(kafka: WireClient) -> None:
    described = shown(kafka, 4, "1", None)
    fixed = [
        name
        for name, (_, kind, _, is_read_only, *_) in described.items()
        if is_read_only and kind != 0 and name not in BROKER_KEYS
    ]
    assert len(fixed) > 100

    async def story() -> dict[str, int]:
        world = ConfigWorld()
        return {
            name: (await world.change(4, "1", [(name, SET, "1")], validate_only=True))[0]
            for name in fixed
        }

    assert run(story) == {
        name: change(kafka, 4, "1", [(name, SET, "1")], validate=True) for name in fixed
    }
    changing = {name for name, one in described.items() if not one[3]}
    known = {*BROKER_KEYS, *LATER_KEYS, *INERT_BROKER_KEYS}
    assert changing - known == {"ssl.engine.factory.class"}  # a class of Java's, and no default


BROKER_SETTINGS: list[tuple[str, dict[str, str]]] = [
    ("", {"nope": "2", "nope.more": "3", "num.replica.fetchers": "2", THROTTLES[0]: "555"}),
    (
        "1",
        {
            "nope": "1",
            "log.cleaner.threads": "2",
            "num.io.threads": "3",
            "listener.name.plaintext.ssl.keystore.password": "secret",
            "listener.name.plaintext.num.network.threads": "3",
            "listener.name.plaintext.nope": "3",
            THROTTLES[0]: "777",
            THROTTLES[1]: "0",
            THROTTLES[2]: "9",
        },
    ),
]
ALL_NAMES = sorted({name for _, settings in BROKER_SETTINGS for name in settings} | {*STATIC})


def test_what_was_set_is_shown_as_by_kafka_until_it_is_removed(kafka: WireClient) -> None:
    def seen(names: list[str]) -> list[Facts]:
        """Without defaults: ours of keys that do nothing are not shown."""
        found = [shown(kafka, 4, who, names) for who in ("1", "")]
        return [{name: one for name, one in of.items() if one[2] != DEFAULT} for of in found]

    before = seen(ALL_NAMES)
    for who, settings in BROKER_SETTINGS:
        keys: Keys = [(name, SET, value) for name, value in settings.items()]
        assert change(kafka, 4, who, keys, validate=False) == 0

    async def story() -> tuple[list[Facts], list[Facts], list[Facts]]:
        world = ConfigWorld(STATIC)

        def ours() -> list[Facts]:
            return [facts(world.describe(4, who, ALL_NAMES)) for who in ("1", "")]

        first = ours()
        for who, settings in BROKER_SETTINGS:
            code, _ = await world.change(4, who, [(n, SET, v) for n, v in settings.items()])
            assert code == 0
        then = ours()
        for who, settings in BROKER_SETTINGS:
            await world.change(4, who, [(name, DELETE, None) for name in settings])
        return first, then, ours()

    first, then, last = run(story)
    assert first == before
    # Kafka's broker learns of it a moment later.
    theirs = wait_for(
        "it is shown", lambda: now if THROTTLES[2] in (now := seen(ALL_NAMES))[0] else None
    )
    assert then == theirs
    for who, settings in BROKER_SETTINGS:
        removals: Keys = [(name, DELETE, None) for name in settings]
        assert change(kafka, 4, who, removals, validate=False) == 0
    theirs = wait_for("it is gone", lambda: now if (now := seen(ALL_NAMES)) == before else None)
    assert last == theirs


@pytest.mark.parametrize("create", [True, False])
def test_a_topics_settings_without_effect_are_shown_where_they_are_set(
    kafka: WireClient, create: bool
) -> None:
    settings = {"internal.segment.bytes": "100", "preallocate": " TRUE", "local.retention.ms": "5"}
    keys: Keys = [(name, SET, value) for name, value in settings.items()]
    name = TOPIC
    if create:
        name = "made-so"
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in settings.items()]
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=configs)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=20_000)
        assert kafka.send(request, 7).topics[0].error_code == 0
    else:
        assert change(kafka, 2, name, keys, validate=False) == 0

    async def story() -> Facts:
        world = await ConfigWorld(STATIC).with_topic()
        assert (await world.change(2, TOPIC, keys))[0] == 0
        return facts(world.describe(2, TOPIC, list(settings)))

    def is_shown() -> Facts | None:
        found = shown(kafka, 2, name, list(settings))
        return found if found.get("preallocate", [""])[0] == "true" else None

    assert run(story) == wait_for("Kafka shows it", is_shown)
