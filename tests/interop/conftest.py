"""Peers for all interop tests: fetched and started once, shared between test processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from kits.interop.client_kit import KINDS, Client, ClientKind, ConnectedClient, new_topic_name
from kits.interop.client_targets import PEERS, TARGET_NAMES, Target, running
from kits.interop.kafka_world import KafkaWorld, kafka_world
from millstream.testing.peers.java_programs import spark_jars
from millstream.testing.peers.kafka import kafka_jars
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.spark.sessions import connector_jars, local_session

ByName = Callable[[str], ConnectedClient]


@pytest.fixture(scope="session")
def jars() -> Path:
    """Apache Kafka with its tools."""
    require_runtime("java", "mvn")
    return kafka_jars(PEERS)


@pytest.fixture(scope="session")
def world(jars: Path) -> KafkaWorld:
    """Kafka's own data directories with their reference."""
    return kafka_world(PEERS, jars)


@pytest.fixture(scope="session", params=TARGET_NAMES)
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    """A running broker for all tests of this process."""
    with running(request.param, tmp_path_factory.mktemp(f"target-{request.param}")) as broker:
        yield broker


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[ClientKind], Client]]:
    """Client programs, each started when it is first asked for."""
    started: dict[str, Client] = {}
    with ExitStack() as stack:

        def program(kind: ClientKind) -> Client:
            if kind.name not in started:
                require_runtime(*kind.runtimes)
                log = tmp_path_factory.mktemp("program") / f"{kind.name}.log"
                started[kind.name] = Client(kind.command(), log=log)
                stack.callback(started[kind.name].close)
            return started[kind.name]

        yield program


@pytest.fixture
def client_of(target: Target, programs: Callable[[ClientKind], Client]) -> ByName:
    """Any client by its name, connected to the target."""
    kinds = {kind.name: kind for kind in KINDS}
    return lambda name: ConnectedClient(programs(kinds[name]), kinds[name], target.servers)


@pytest.fixture
def client(request: pytest.FixtureRequest, client_of: ByName) -> ConnectedClient:
    """The client that a test is run with (`for_clients`)."""
    kind: ClientKind = request.param
    return client_of(kind.name)


@pytest.fixture
def new_topic(client_of: ByName) -> Callable[..., str]:
    """Makes a topic with a name of its own, for clients that cannot."""

    def create(about: str, *, partitions: int = 1, **configs: str) -> str:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        topic = new_topic_name(about)
        return client_of("confluent-kafka").create_topic(
            topic, partitions=partitions, configs=named
        )

    return create


@pytest.fixture(scope="session")
def pyspark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """For all tests of this process: its JVM stays, so it has Spark's connector from the start."""
    require_runtime("java", "mvn")
    jars = connector_jars(spark_jars(PEERS))
    session = local_session(tmp_path_factory.mktemp("pyspark"), jars=jars)
    yield session
    session.stop()
