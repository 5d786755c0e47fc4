"""Idle connections, as many as a broker takes: others are served beside them."""

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.waiting_for import until
from millstream.wire.messages.metadata import MetadataRequest

DESCRIPTORS = 1_024


@contextmanager
def descriptors(soft: int) -> Iterator[None]:
    """For this process, which holds the other ends."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def is_served(broker: BrokerProcess) -> bool:
    with broker.client() as client:
        try:
            return bool(client.send(MetadataRequest(topics=[]), 9).brokers)
        except (EOFError, ConnectionError):
            return False


def test_idle_connections_leave_descriptors_for_an_administrator(tmp_path: Path) -> None:
    """The settings allow more connections than the process can have."""
    command = ("prlimit", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}")
    with ExitStack() as held, descriptors(4 * DESCRIPTORS):
        broker = held.enter_context(broker_process(tmp_path, inside=command))
        host, _, port = broker.bootstrap_servers.rpartition(":")
        for _ in range(DESCRIPTORS + 100):
            held.enter_context(socket.create_connection((host, int(port))))
        until(lambda: is_served(broker), "an administrator is served")
        refused = "could not accept a connection"
        assert refused not in (tmp_path / "stderr").read_text()
