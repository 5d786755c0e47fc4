"""I-34: clients that pipeline small requests and read no answers do not keep others waiting.

Waits are measured by the CPU time of the broker, which does nothing else and so is busy all the
time: on a machine that is busy with other tests they are longer by the clock, and not by this.
"""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.waiting_for import until
from kits.process.wire_client import build_batch
from millstream.wire.headers import encode_request_header
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_groups import ListGroupsRequest

CONNECTIONS = 100
PIPELINED = 1_000
ROUNDS = 10
WAIT_MAX_S = 0.1
"""I-34, for half of them: all pipelines are equal at first, and the first wait is a turn of each.
"""


def cpu_seconds(process_id: int) -> float:
    """User and system time: while the broker is busy it goes on as a clock does."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("pipelines"), {"log.level": "WARN"}) as running:
        with running.client() as client:
            client.create_topic("topic")
            ready = FindCoordinatorRequest(key="group")
            until(lambda: client.send(ready, 2).error_code == 0, "groups are served")
            until(lambda: client.send(ListGroupsRequest(), 0).error_code == 0, "groups are loaded")
        yield running


@pytest.mark.parametrize(
    ("request_", "version"), [(DescribeClusterRequest(), 0), (ListGroupsRequest(), 0)]
)
def test_others_are_answered_beside_pipelines_that_nobody_reads(
    broker: BrokerProcess, request_: Any, version: int
) -> None:
    """Of requests that are served at once, and of those that go on as tasks."""
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    body = encode_request_header(request_.API_KEY, version, 1, "c") + request_.encode(version)
    frame = struct.pack(">i", len(body)) + body
    batch = build_batch([(b"k", b"v")])
    waits = []
    with ExitStack() as stack:
        quiet = stack.enter_context(broker.client())
        quiet.produce("topic", batch)
        for _ in range(CONNECTIONS):
            busy = stack.enter_context(socket.create_connection((host, int(port))))
            busy.sendall(frame * PIPELINED)
        for _ in range(ROUNDS):
            began_s = cpu_seconds(broker.pid)
            quiet.produce("topic", batch)
            quiet.send(DescribeClusterRequest(), 0)
            waits.append(cpu_seconds(broker.pid) - began_s)
    waits.sort()
    assert waits[ROUNDS // 2] <= WAIT_MAX_S, waits
