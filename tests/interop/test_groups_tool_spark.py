"""Apache Kafka's kafka-consumer-groups on the group of a Spark query, which has no members."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from conftest import ByName
from kits.interop.client_kit import Record
from kits.interop.client_targets import Target
from kits.interop.group_tool import GroupTool, listed

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("spark")]

TIMEOUT_S = 60


@pytest.fixture
def tool(client_of: ByName, new_topic: Callable[..., str], tmp_path: Path) -> GroupTool:
    return GroupTool(client_of("java"), new_topic("query-topic", partitions=2), tmp_path)


@pytest.fixture
def run_query(
    pyspark_session: SparkSession, target: Target, tool: GroupTool, tmp_path: Path
) -> Callable[[], None]:
    """Reads what there is, with the same checkpoint each time."""

    def run() -> None:
        source = pyspark_session.readStream.format("millstream").options(
            **{
                "kafka.bootstrap.servers": target.servers,
                "subscribe": tool.topic,
                "startingOffsets": "earliest",
                "group.id": tool.group,
            }
        )
        writer = source.load().writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(TIMEOUT_S)

    return run


def test_lag_of_a_query_is_listed_and_described(
    tool: GroupTool, run_query: Callable[[], None]
) -> None:
    run_query()
    assert [tool.group, "Empty"] in listed(tool.java, "--state", "empty")
    assert tool.offsets() == {0: ("10", "10", "0"), 1: ("0", "0", "0")}
    tool.java.produce(tool.topic, [Record(value=b"later")] * 3)
    assert tool.offsets()[0] == ("10", "13", "3")
    run_query()
    assert tool.offsets()[0] == ("13", "13", "0")


def test_group_of_a_query_is_reset_and_deleted_and_the_query_goes_on_where_it_was(
    tool: GroupTool, run_query: Callable[[], None]
) -> None:
    """The group only shows where the query is; that is kept in its checkpoint."""
    run_query()
    tool.run("--reset-offsets", "--topic", tool.topic, "--to-offset", "4", "--execute")
    assert tool.offsets()[0] == ("4", "10", "6")
    tool.java.produce(tool.topic, [Record(value=b"later")])
    run_query()
    assert tool.offsets()[0] == ("11", "11", "0")
    assert "successful" in tool.run("--delete")
    assert [tool.group] not in listed(tool.java)
    tool.java.produce(tool.topic, [Record(value=b"more")])
    run_query()
    assert tool.offsets()[0] == ("12", "12", "0")
