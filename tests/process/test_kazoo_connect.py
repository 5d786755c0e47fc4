"""Opening a session while connections end: a reason to try again, never the end of a broker."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from kits.coordination.coordination_kit import CREDENTIALS, SHORT_SESSION_MS
from kits.process.keeper_process import KeeperProcess, keeper_process
from kits.process.lossy_proxy import LossyProxy
from millstream.cli.keeper_thread import KeeperThread
from millstream.controller.cluster.nodes import Registration
from millstream.controller.cluster.registration import BrokerLifecycle, ClusterIds, Registered
from millstream.controller.image import Endpoint
from millstream.coordination import errors
from millstream.coordination.kazoo_client import Access
from millstream.coordination.kazoo_coordination import KazooCoordination
from millstream.coordination.keeper import machine
from millstream.model.ids import BrokerEpoch, BrokerId
from millstream.runtime.clock import SystemClock
from millstream.runtime.randomness import SeededRandomness

WAIT_S = 20.0
PROOF = 2
"""The message of a client that has its secret, behind the request of a session."""


@pytest.fixture(scope="module")
def keeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeeperProcess]:
    with keeper_process(tmp_path_factory.mktemp("keeper")) as running:
        yield running


@pytest.fixture
def proxy(keeper: KeeperProcess) -> Iterator[LossyProxy]:
    with LossyProxy(("127.0.0.1", keeper.port)) as running:
        yield running


@pytest.mark.parametrize(
    ("chroot", "ends_before"),
    [("", PROOF), ("/at/the/proof", PROOF), ("/while/it/is/made", PROOF + 1)],
)
def test_a_connection_that_ends_early_is_a_failure_to_connect(
    proxy: LossyProxy, chroot: str, ends_before: int
) -> None:
    """Anybody can cause it, with many connections to the keeper."""

    async def story() -> None:
        place = f"{proxy.address}{chroot}"
        coordination = KazooCoordination(place, SystemClock(), Access(CREDENTIALS))
        proxy.ends_before = [ends_before]
        with pytest.raises(errors.CannotConnect, match=place):
            await coordination.connect(timeout_ms=6000, wait_s=WAIT_S)
        session = await coordination.connect(timeout_ms=6000, wait_s=WAIT_S)
        await session.close()

    asyncio.run(story())


class Member:
    """A broker that is registered."""

    def __init__(self) -> None:
        self.is_registered = asyncio.Event()

    def registered(self, incarnation: Registered) -> None:
        self.is_registered.set()

    def session_lost(self, epoch: BrokerEpoch) -> None: ...

    def reachability_changed(self) -> None: ...

    def has_all_data(self) -> bool:
        return True


def test_a_broker_whose_connections_end_at_their_proof_registers_later(proxy: LossyProxy) -> None:
    async def story() -> None:
        member = Member()
        lifecycle = BrokerLifecycle(
            KazooCoordination(proxy.address, SystemClock(), Access(CREDENTIALS)),
            Registration(
                BrokerId(1), (Endpoint("PLAINTEXT", "b", 9092),), directory_id=UUID(int=1)
            ),
            clock=SystemClock(),
            broker=member,
            cluster_ids=ClusterIds(None, "a-cluster-of-our-own00"),
            session_timeout_ms=SHORT_SESSION_MS,
            randomness=SeededRandomness(1),
        )
        proxy.ends_before = [PROOF, 0, PROOF]  # between them, the first session is asked for again
        async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(lifecycle.run())
            await member.is_registered.wait()
            lifecycle.close()
        assert proxy.ends_before == []

    asyncio.run(story())


def test_a_refusal_of_the_proof_for_another_reason_is_a_failure_to_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as too many sessions: an error in kazoo's thread would fail the test."""
    monkeypatch.setattr(machine, "SESSIONS_PER_ADDRESS_MAX", 0)
    keeper = KeeperThread(tmp_path)
    port = keeper.start(0, on_failure=lambda error: pytest.fail(str(error)))

    async def story() -> None:
        place = f"127.0.0.1:{port}"
        coordination = KazooCoordination(place, SystemClock(), Access(keeper.credentials))
        with pytest.raises(errors.CannotConnect, match=place):
            await coordination.connect(timeout_ms=6000, wait_s=WAIT_S)

    try:
        asyncio.run(story())
    finally:
        keeper.stop()
