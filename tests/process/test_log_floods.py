"""What clients can do to a broker's log: a line for each kind, and the number of the others."""

import json
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.process.broker_process import BrokerProcess, broker_process
from millstream.model.limits import LOG_CHANGES_PER_INTERVAL_MAX
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from millstream.wire.messages.pull_metadata import PullMetadataRequest

BROKER_LOGGER = 8
FLOOD = 2_000


class Lines:
    """Of a broker that is flooded."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._path: Path = broker.directory / "stderr"
        self._begin = self._path.stat().st_size

    def read(self) -> list[dict[str, Any]]:
        with self._path.open() as file:
            file.seek(self._begin)
            return [json.loads(line) for line in file if line.startswith("{")]

    def counts(self) -> Counter[str]:
        return Counter(one["message"] for one in self.read())

    def suppressed(self, kind: str) -> int:
        return sum(one["suppressed"] for one in self.read() if one.get("kind") == kind)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with broker_process(tmp_path_factory.mktemp("floods")) as running:
        yield running


def test_bad_frames(tmp_path: Path) -> None:
    """What was suppressed is reported at the end, too."""
    with broker_process(tmp_path) as broker:
        lines, kind = Lines(broker), "connection closed"
        host, _, port = broker.bootstrap_servers.rpartition(":")
        for _ in range(300):
            with socket.create_connection((host, int(port))) as bad:
                bad.sendall(struct.pack(">i", -1))
                bad.recv(1)
    assert lines.counts()[kind] == 1
    assert lines.suppressed(kind) == 299


def test_requests_that_are_refused_with_a_line(broker: BrokerProcess) -> None:
    lines = Lines(broker)
    with broker.client() as client:
        for version, request in (
            (4, FindCoordinatorRequest(key_type=1, coordinator_keys=["t"])),
            (0, PullMetadataRequest(broker_id=1, max_wait_ms=0)),
        ):
            for _ in range(0, FLOOD, 100):
                for _ in range(100):
                    client.write(request, version)
                for _ in range(100):
                    client.read_frame()
    found = lines.counts()
    assert len(found) == 2
    assert set(found.values()) == {1}


def test_levels_that_are_changed_again_and_again(broker: BrokerProcess) -> None:
    lines, kind = Lines(broker), "log level changed"
    change = AlterableConfig(name="millstream.broker", config_operation=0, value="INFO")
    resource = AlterConfigsResource(
        resource_type=BROKER_LOGGER, resource_name="1", configs=[change]
    )
    request = IncrementalAlterConfigsRequest(resources=[resource])
    with broker.client() as client:
        for _ in range(FLOOD // 2):
            client.send(request, 1)
    assert lines.counts()[kind] == LOG_CHANGES_PER_INTERVAL_MAX
