"""One Spark session for all tests of this folder: it takes longer to start than they to run."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from millstream.testing import BrokerThread
from millstream.testing.peers.runtimes import require_runtime
from millstream.testing.spark_sessions import local_session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/spark/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores."""
    require_runtime("java")
    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def servers() -> Iterator[str]:
    """Where a real broker of ours listens; tests take topics of their own."""
    with BrokerThread() as broker:
        yield broker.bootstrap_servers
