"""Listeners: what is configured, what is advertised, what is refused."""

import asyncio
from pathlib import Path

import pytest

from millstream.broker.broker import Broker
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


@pytest.mark.parametrize("settings", [{}, {"zookeeper.connect": "127.0.0.1:1"}])
def test_a_broker_starts_only_if_the_listener_for_brokers_is_one_of_its_listeners(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    """Also a standalone one: it would be a member without a listener as soon as it is one."""

    async def start(name: str) -> None:
        given = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(tmp_path / name),
            "inter.broker.listener.name": name,
            **settings,
        }
        await Broker(BrokerConfigs(given)).start()

    with pytest.raises(InvalidConfig, match=r"inter\.broker\.listener\.name: .* ELSEWHERE"):
        asyncio.run(start("elsewhere"))
    assert not list(tmp_path.iterdir()), "before anything is written"
