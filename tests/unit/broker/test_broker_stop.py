"""A stop under load: what clients sent and nobody needs any more does not hold it up."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, produce_request
from millstream.broker.handlers import produce
from millstream.kernels.compression import Codec
from millstream.testing.broker_thread import BrokerThread
from millstream.testing.record_batches import BatchSpec, build_batch

CLIENTS = 5
STOP_WITHIN_S = 4.0
"""Two seconds for clients, and some for a slow machine; a job that is waited for has ten."""


class Stuck:
    """Checks of batches that do not come to an end while the test does not want them to."""

    def __init__(self) -> None:
        self.begun = 0
        self.go_on = threading.Event()

    def check(self, *_: object) -> None:
        self.begun += 1
        self.go_on.wait(60)
        raise OSError("nobody wants to know")


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    found = Stuck()
    monkeypatch.setattr(produce, "_check_in_worker_thread", found.check)
    yield found
    found.go_on.set()


def test_a_stop_does_not_wait_for_batches_that_are_being_checked(stuck: Stuck) -> None:
    """Two are at work, the others wait for their turn; none of them was acknowledged."""
    heavy = build_batch([(None, bytes(40_000_000))], BatchSpec(codec=Codec.ZSTD))
    with ExitStack() as held, BrokerThread({"message.max.bytes": "1000000"}) as broker:
        clients = [held.enter_context(WireClient(broker.bootstrap_servers)) for _ in range(CLIENTS)]
        clients[0].create_topic("t")
        for client in clients:
            client.write(produce_request("t", heavy), 9)
        until(lambda: stuck.begun == 2, "two batches are being checked")
        begin_s = time.monotonic()
        broker.stop()
        assert time.monotonic() - begin_s < STOP_WITHIN_S
        assert stuck.begun == 2
        assert all(client.is_closed_by_peer() for client in clients)
