"""Probes and scrapes of a broker whose HTTP port others hold connections to."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kits.process.broker_process import broker_process


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    directory: Path = tmp_path_factory.mktemp("http")
    with broker_process(directory, {"metrics.port": "0"}):
        lines = (directory / "stderr").read_text().splitlines()
        (told,) = [json.loads(one) for one in lines if "serving metrics" in one]
        yield told["port"]


def status(port: int, path: str) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        answer.read()
        return int(answer.status)


@pytest.mark.parametrize("sent", [b"", b"GET /hea", b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_health_and_metrics_answer_while_others_hold_connections(port: int, sent: bytes) -> None:
    with ExitStack() as held:
        for _ in range(200):
            client = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(sent)
        assert [status(port, path) for path in ("/health", "/ready", "/metrics")] == [200] * 3
