"""Clusters with a listener for brokers beside the one for clients."""

import asyncio

import pytest

from millstream.rpc.connections import Address
from millstream.rpc.errors import RpcError
from millstream.testing.simulation.broker.scene import PORT
from millstream.testing.simulation.cluster.scene import host_of
from millstream.testing.simulation.cluster.scripted_cluster import ScriptedCluster

INSIDE_PORT = PORT + 1
LISTENERS = {
    "listeners": f"OUTSIDE://$HOST:{PORT},INSIDE://$HOST:{INSIDE_PORT}",
    "listener.security.protocol.map": "OUTSIDE:PLAINTEXT,INSIDE:PLAINTEXT",
}


async def is_taken_for_a_broker(cluster: ScriptedCluster, *, at: int) -> bool:
    """Broker 2 connects to broker 1, and proves itself with all that it knows."""
    broker = cluster.machine(2).broker
    assert broker is not None
    assert broker.cluster is not None
    try:
        await broker.cluster.connections.get(Address(host_of(1), at))
    except RpcError:
        return False
    return True


@pytest.mark.parametrize("named", ["INSIDE", "OUTSIDE", None])
def test_brokers_are_answered_as_such_on_their_listener_only(named: str | None) -> None:
    """Where none is named any listener serves them."""
    settings = LISTENERS if named is None else {**LISTENERS, "inter.broker.listener.name": named}

    async def story(cluster: ScriptedCluster) -> None:
        await cluster.create([1, 2, 3])
        assert await cluster.produce(1, b"a") == 0
        await cluster.until_led(by=1, isr={1, 2, 3})
        for name, port in (("OUTSIDE", PORT), ("INSIDE", INSIDE_PORT)):
            async with asyncio.timeout(10):
                assert await is_taken_for_a_broker(cluster, at=port) == (named in (None, name))

    ScriptedCluster(settings=settings).run(story)
