"""Peers for all interop tests: fetched and started once, shared between test processes."""

from pathlib import Path

import pytest
from kafka_world import KafkaWorld, kafka_world

from millstream.testing.peers.kafka import kafka_jars
from millstream.testing.peers.runtimes import require_runtime

PEERS = Path(__file__).resolve().parents[2] / "build" / "peers"


@pytest.fixture(scope="session")
def jars() -> Path:
    """Apache Kafka with its tools."""
    require_runtime("java", "mvn")
    return kafka_jars(PEERS)


@pytest.fixture(scope="session")
def world(jars: Path) -> KafkaWorld:
    """Kafka's own data directories with their reference."""
    return kafka_world(PEERS, jars)
