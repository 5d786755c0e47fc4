"""Listeners: what is configured, what is advertised, what is refused."""

import pytest

from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.net.listeners import ListenerAddress, parse_listeners
from millstream.model.config.errors import InvalidConfig


@pytest.mark.parametrize(
    ("written", "place"),
    [
        ("PLAINTEXT://127.0.0.1:9092", "127.0.0.1:9092"),
        ("PLAINTEXT://:9092", ":9092"),
        ("PLAINTEXT://[::1]:9092", "[::1]:9092"),
        ("PLAINTEXT://::1:9092", "[::1]:9092"),
        ("PLAINTEXT://broker.example:0", "broker.example:0"),
    ],
)
def test_an_address_is_told_so_that_host_and_port_can_be_told_apart(
    written: str, place: str
) -> None:
    (one,) = parse_listeners("listeners", [written])
    assert (one.host_port, one.url) == (place, f"PLAINTEXT://{place}")
    assert parse_listeners("listeners", [one.url]) == [one]


def test_the_same_listener_twice_is_refused() -> None:
    """A list loses its duplicates, but this one is a mistake, as in Kafka."""
    twice = "PLAINTEXT://127.0.0.1:9092, PLAINTEXT://127.0.0.1:9092"
    configs = BrokerConfigs({"broker.id": "1", "log.dirs": "d", "listeners": twice})
    with pytest.raises(InvalidConfig, match="given twice: PLAINTEXT://127"):
        parse_listeners("listeners", configs.get_written("listeners"))


def test_settings_that_are_not_there_have_no_members() -> None:
    configs = BrokerConfigs({"broker.id": "1", "log.dirs": "d"})
    assert configs.get_written("advertised.listeners") == []
    found = parse_listeners("listeners", configs.get_written("listeners"))
    assert found == [ListenerAddress("PLAINTEXT", "", 9092)]
