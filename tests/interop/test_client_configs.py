"""Every client that administers sees and changes the configuration of topics and of the broker."""

from collections.abc import Callable

import pytest

from kits.interop.client_kit import ClientRefused, ConnectedClient, ErrorNumber, for_clients
from kits.interop.client_targets import Target
from kits.interop.waiting import wait_until

pytestmark = pytest.mark.interop


@for_clients("configs")
def test_topic_configs_are_described_with_their_defaults(
    client: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("described", cleanup_policy="compact")
    told = client.configs("topic", topic)
    assert (told["cleanup.policy"]["value"], told["cleanup.policy"]["is_default"]) == (
        "compact",
        False,
    )
    assert (told["retention.ms"]["value"], told["retention.ms"]["is_default"]) == (
        "604800000",
        True,
    )
    assert told["compression.type"]["value"] == "producer"
    assert told["segment.bytes"]["is_read_only"] in (False, None)


@for_clients("configs", "incremental_configs")
def test_topic_config_is_set_and_removed(
    client: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    """What is not named stays as it was."""
    topic = new_topic("altered", max_message_bytes="100000")
    client.alter_configs("topic", topic, {"retention.ms": "1000000", "flush.ms": "7"})
    told = client.configs("topic", topic)
    assert [told[name]["value"] for name in ("retention.ms", "flush.ms", "max.message.bytes")] == [
        "1000000",
        "7",
        "100000",
    ]
    client.alter_configs("topic", topic, {}, remove=["retention.ms", "max.message.bytes"])
    told = client.configs("topic", topic)
    assert [told[name]["value"] for name in ("retention.ms", "flush.ms", "max.message.bytes")] == [
        "604800000",
        "7",
        "1048588",
    ]


@for_clients("configs")
def test_older_request_replaces_all_topic_configs(
    client: ConnectedClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("replaced", max_message_bytes="100000")
    client.alter_configs("topic", topic, {"retention.ms": "1000000"})
    told = client.configs("topic", topic)
    assert told["retention.ms"]["value"] == "1000000"
    kept = "100000" if client.kind.can("incremental_configs") else "1048588"
    assert told["max.message.bytes"]["value"] == kept


@for_clients("configs")
def test_bad_configs_are_refused(client: ConnectedClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic("refused")
    for bad in ({"retention.ms": "soon"}, {"no.such.key": "1"}, {"cleanup.policy": "shred"}):
        with pytest.raises(ClientRefused) as refused:
            client.alter_configs("topic", topic, bad)
        assert refused.value.code == ErrorNumber.INVALID_CONFIG
    assert client.configs("topic", topic)["retention.ms"]["value"] == "604800000"


@for_clients("configs")
def test_broker_configs_are_described(client: ConnectedClient, target: Target) -> None:
    told = client.configs("broker", "1")
    assert told["log.dirs"]["value"] == str(target.data_directory)
    assert told["log.dirs"]["is_read_only"] in (True, None)
    assert told["log.retention.hours"]["value"] == "168"


@for_clients("configs", "incremental_configs")
def test_broker_config_is_set_and_removed(client: ConnectedClient) -> None:
    name = "log.segment.bytes"
    before = _broker_value(client, name)
    client.alter_configs("broker", "1", {name: "1073741000"})
    # Kafka's broker learns of it a moment later.
    wait_until("it is changed", lambda: _broker_value(client, name) == "1073741000")
    client.alter_configs("broker", "1", {}, remove=[name])
    wait_until("it is as before", lambda: _broker_value(client, name) == before)


def _broker_value(client: ConnectedClient, name: str) -> str:
    value: str = client.configs("broker", "1")[name]["value"]
    return value


@for_clients("configs", "incremental_configs")
def test_fixed_broker_config_is_not_changed(client: ConnectedClient) -> None:
    with pytest.raises(ClientRefused) as refused:
        client.alter_configs("broker", "1", {"log.dirs": "somewhere-else"})
    assert refused.value.code == ErrorNumber.INVALID_REQUEST
