"""Log lines that a client can cause are limited: servers log through `ClientLog`, or say here why
a line needs no limit.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.paths import ROOT
from kits.repository.client_lines import plain_lines

PACKAGE = ROOT / "src" / "millstream"
SERVER = (
    *("broker", "controller", "coordination/keeper", "groups", "observe", "replication"),
    *("shards", "storage"),
)

NOT_FOR_CLIENTS = {
    "broker/process.py": "start and end of the process",
    "broker/net/limits.py": "at the start",
    "broker/cluster/coordination_access.py": "at the start",
    "broker/cluster/full_replicas.py": "about this broker's own disks, at the pace of its checks",
    "broker/cluster/lost_replicas.py": "about this broker's own disks, at the pace of its checks",
    "broker/cluster/member.py": "about this broker's own session",
    "broker/cluster/runtime.py": "start, and truncations, of which there is one per election",
    "controller/cluster/active.py": "one line per change of brokers or of the controller",
    "controller/cluster/candidate.py": "about this broker's own elections, with pauses",
    "controller/cluster/node_reader.py": "what other brokers wrote to the coordination service",
    "controller/cluster/registration.py": "about this broker's own session",
    "coordination/keeper/commits.py": "about the keeper's own disk, one per log that is closed",
    "coordination/keeper/process.py": "start and end of the process",
    "observe/client_log.py": "it writes what was suppressed",
    "replication/fetchers.py": "about leaders that this broker fetches from, with pauses",
}
"""Modules whose lines no request of a client leads to."""

ONCE = {
    "broker/broker.py": {
        "setting does not fit a standalone broker": "at the start",
        "first start: no earlier data found": "at the start",
        "forgot a missing log directory that had no partitions": "at the start",
        "topic adopted": "at the start",
        "partition not adopted": "at the start",
        "log directory offline": "at the start",
        "partition offline: its log could not be loaded": "at the start",
        "broker started": "at the start",
        "broker stopped": "at the end",
        "background work did not finish in time": "at the end",
    },
    "broker/cluster/failed_replicas.py": {
        "replaced a failed log; its records are fetched from the leader": "once in ten minutes"
    },
    "broker/configs/broker_configs.py": {
        "stored setting ignored": "once per setting and value, REPORTED_MAX of them",
        "setting has no effect": "once per setting, REPORTED_MAX of them",
    },
    "broker/upkeep.py": {
        "scheduled task failed": "at the pace of the task",
        "segments removed by retention": "at the pace of the task",
        "log directory failed": "once per directory",
        "partition failed": "once per partition, until it is deleted",
        "records of a partition are damaged": "once per partition, until it is deleted",
        "log directory full; refusing writes": "once per episode, and a check is a second",
        "log directory has space again; accepting writes": "once per episode",
        "segment file set aside: it does not continue the log": "one per file, at a start",
        "": "one line per partition that lost records, at a start",
    },
    "controller/cluster/metadata_follower.py": {
        "fetching metadata from the controller failed": "with pauses between attempts",
        "metadata change was not applied by every subscriber": "our own fault, one per delta",
    },
    "coordination/keeper/server.py": {
        "truncated the torn end of the journal": "at the start",
        "listening": "at the start",
        "disk failed": "at the end",
    },
    "observe/registry.py": {"cannot read metric": "once per metric"},
    "observe/server.py": {
        "serving metrics": "at the start",
        "cannot serve metrics": "at the start",
    },
    "shards/coordinator.py": {"": "one line per load of a partition, with pauses after failures"},
}
"""Lines of modules that serve clients, or whose work clients can cause."""


def server_modules() -> Iterator[tuple[str, str]]:
    for one in SERVER:
        for path in sorted((PACKAGE / one).rglob("*.py")):
            yield str(path.relative_to(PACKAGE)), path.read_text()


def test_every_line_that_a_client_can_cause_is_limited() -> None:
    broken = {
        f"{name}:{one.line}: {one.message}"
        for name, source in server_modules()
        if name not in NOT_FOR_CLIENTS
        for one in plain_lines(source)
        if one.message not in ONCE.get(name, {})
    }
    assert broken == set()


def test_no_exception_is_left_over() -> None:
    found = {
        name: {one.message for one in plain_lines(source)} for name, source in server_modules()
    }
    assert {name for name in NOT_FOR_CLIENTS if not found.get(name)} == set()
    left_over = {name: lines.keys() - found[name] for name, lines in ONCE.items()}
    assert not any(left_over.values()), left_over


@pytest.mark.parametrize(
    ("source", "messages"),
    [
        ('log.warning("x", client=a)', ["x"]),
        ('write = log.info if a else log.error\nwrite("x")', ["", ""]),
        ('log.error(f"{name} failed", error=error)', [""]),
        ('self._client_log.warning(log, "x", client=a)', []),
        ('if log.is_enabled(10):\n    client_log.debug(log, "x", client=a)', []),
    ],
)
def test_plain_lines_are_recognised(source: str, messages: list[str]) -> None:
    assert [one.message for one in plain_lines(source)] == messages


def test_the_rule_looks_at_real_modules() -> None:
    assert Path(PACKAGE / "broker/handlers/envelope.py").exists()
    assert len(list(server_modules())) > 100
