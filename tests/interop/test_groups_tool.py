"""Apache Kafka's kafka-consumer-groups: what an operator types, and what is printed."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from conftest import ByName
from kits.interop.client_kit import START_MS, ConnectedClient, Record
from kits.interop.group_tool import TOOL, GroupTool, Row, listed
from kits.interop.kafka_tools import run_script

pytestmark = pytest.mark.interop

PROTOCOLS: Final = ("eager", "cooperative", "consumer")
for_protocols = pytest.mark.parametrize("protocol", PROTOCOLS)

NewTopic = Callable[..., str]


@pytest.fixture
def java(client_of: ByName) -> ConnectedClient:
    return client_of("java")


@pytest.fixture
def tool(java: ConnectedClient, new_topic: NewTopic, tmp_path: Path) -> GroupTool:
    return GroupTool(java, new_topic("tool-topic", partitions=2), tmp_path)


@for_protocols
def test_groups_are_listed_with_type_and_state(tool: GroupTool, protocol: str) -> None:
    kind = "Consumer" if protocol == "consumer" else "Classic"
    with tool.member(protocol):
        assert [tool.group] in listed(tool.java)
        assert [tool.group, kind, "Stable"] in _columns(tool, "--type", "--state")
        assert [tool.group, "Stable"] in listed(tool.java, "--state", "stable")
        assert [tool.group, "Stable"] not in listed(tool.java, "--state", "empty")
        assert [tool.group, kind] in listed(tool.java, "--type", kind.lower())
    assert [tool.group, "Empty"] in listed(tool.java, "--state", "empty")


def _columns(tool: GroupTool, *arguments: str) -> list[list[str]]:
    """Name, type and state, in whatever order they are printed."""
    head, *rows = listed(tool.java, *arguments)
    at = [head.index(name) for name in ("GROUP", "TYPE", "STATE")]
    return [[row[n] for n in at] for row in rows]


@for_protocols
def test_lag_of_a_working_group_is_described(tool: GroupTool, protocol: str) -> None:
    with tool.member(protocol) as name:
        rows = tool.rows("--describe")
        assert {row["TOPIC"] for row in rows} == {tool.topic}
        assert {row["CLIENT-ID"] for row in rows} == {name}
        assert all(row["HOST"].startswith("/") for row in rows)
        assert tool.offsets()[0] == ("10", "10", "0")
    tool.java.produce(tool.topic, [Record(value=b"later")] * 3)
    assert tool.offsets()[0] == ("10", "13", "3")


@for_protocols
def test_members_are_described(tool: GroupTool, protocol: str) -> None:
    with tool.member(protocol) as name:
        (row,) = tool.rows("--describe", "--members")
        assert (row["CLIENT-ID"], row["#PARTITIONS"]) == (name, "2")
        told = tool.run("--describe", "--members", "--verbose")
        assert re.search(rf"{tool.topic}(:0,1|\(0,1\)|:\(0,1\))", told), told


@for_protocols
def test_state_is_described(tool: GroupTool, protocol: str) -> None:
    with tool.member(protocol):
        told = tool.run("--describe", "--state")
        assert re.search(rf"{tool.group}\s+\S+:\d+ +\(\d+\)\s+\S+\s+Stable\b.*\s1\s*$", told), told
        strategy = {"eager": "range", "cooperative": "cooperative-sticky", "consumer": "uniform"}
        assert strategy[protocol] in told
    told = tool.run("--describe", "--state")
    assert re.search(r"\sEmpty\s", told)


def test_unknown_group_is_told(tool: GroupTool) -> None:
    done = run_script(
        tool.java, TOOL, "--describe", "--group", "never-there-by-tool", must_work=False
    )
    assert "never-there-by-tool" in done.text + done.errors
    assert "not found" in done.text + done.errors or "does not exist" in done.text + done.errors


@for_protocols
def test_offsets_are_reset(tool: GroupTool, protocol: str) -> None:
    tool.read_all(protocol)
    where = ("--reset-offsets", "--topic", tool.topic)

    def reset(*way: str) -> str:
        (row,) = [one for one in tool.rows(*where, *way) if one["PARTITION"] == "0"]
        return row["NEW-OFFSET"]

    assert reset("--to-offset", "4", "--dry-run") == "4"
    assert tool.offsets()[0][0] == "10"
    assert reset("--to-offset", "4", "--execute") == "4"
    assert tool.offsets()[0] == ("4", "10", "6")
    assert reset("--shift-by", "3", "--execute") == "7"
    assert tool.offsets()[0] == ("7", "10", "3")
    assert reset("--to-earliest", "--execute") == "0"
    assert reset("--to-latest", "--execute") == "10"
    assert tool.offsets()[0] == ("10", "10", "0")
    assert reset("--to-datetime", _datetime(START_MS + 6_000), "--execute") == "6"
    assert tool.offsets()[0] == ("6", "10", "4")


def _datetime(at_ms: int) -> str:
    import datetime

    at = datetime.datetime.fromtimestamp(at_ms / 1000, tz=datetime.UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03}Z"


@for_protocols
def test_offsets_of_a_working_group_are_not_reset(tool: GroupTool, protocol: str) -> None:
    with tool.member(protocol):
        where = ("--reset-offsets", "--topic", tool.topic, "--to-earliest", "--execute")
        told = tool.run(*where, must_work=False)
        assert "Error" in told or "can only be reset if" in told
        assert tool.offsets()[0][0] == "10"


def test_reset_group_is_read_from_there(tool: GroupTool) -> None:
    tool.read_all()
    where = ("--reset-offsets", "--topic", tool.topic, "--to-offset", "4", "--execute")
    tool.run(*where)
    read = run_script(
        tool.java,
        "kafka-console-consumer",
        *("--topic", tool.topic, "--group", tool.group, "--max-messages", "6"),
        *("--formatter-property", "print.offset=true", "--timeout-ms", "20000"),
    )
    found = re.findall(r"Offset:(\d+)", read.text)
    assert found == ["4", "5", "6", "7", "8", "9"]


@for_protocols
def test_offsets_are_deleted(tool: GroupTool, protocol: str) -> None:
    with tool.member(protocol):
        told = tool.run("--delete-offsets", "--topic", tool.topic, must_work=False)
        assert "subscribed" in told.lower()
        assert tool.offsets()[0][0] == "10"
    told = tool.run("--delete-offsets", "--topic", tool.topic)
    assert re.search(rf"{tool.topic}\s+0\s+Successful", told), told
    assert "10" not in [row["CURRENT-OFFSET"] for row in _rows_or_none(tool)]


def _rows_or_none(tool: GroupTool) -> list[Row]:
    """A group without offsets may be gone, or has a table without rows."""
    try:
        return tool.rows("--describe")
    except (AssertionError, StopIteration):
        return []


@for_protocols
def test_group_is_deleted(tool: GroupTool, protocol: str) -> None:
    with tool.member(protocol):
        told = tool.run("--delete", must_work=False)
        assert "GroupNotEmptyException" in told or "not empty" in told.lower()
        assert tool.offsets()[0][0] == "10"
    told = tool.run("--delete")
    assert "successful" in told
    assert [tool.group] not in listed(tool.java)
