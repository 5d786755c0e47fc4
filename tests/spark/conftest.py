"""One Spark session for all tests of this folder: it takes longer to start than they to run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from kits.process.broker_process import broker_process
from millstream.testing.peers.kafka import free_ports
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.spark.sessions import SHORT_LIVED_JVM, local_session


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads marks, also for `pytest tests/spark`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def connect_port() -> int:
    """Where the session listens for Spark Connect."""
    (port,) = free_ports(1)
    return port


@pytest.fixture(scope="session")
def connect_server(connect_port: int, spark: SparkSession) -> str:
    """The session, for clients in other processes."""
    del spark
    return f"sc://127.0.0.1:{connect_port}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, connect_port: int) -> Iterator[SparkSession]:
    """A local session with two cores; a Spark Connect server too, which costs it nothing."""
    require_runtime("java")
    settings = {
        "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(connect_port),
    }
    session = local_session(tmp_path_factory.mktemp("spark"), settings=settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a real broker of ours listens; tests take topics of their own.

    In a process of its own: it stays when this process goes on with other tests.
    """
    with broker_process(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers
