"""One seed, one run: three nodes with disks, connections and background work, faults included.

`python tests/unit/testing/sim/test_sim_determinism.py SEED` prints the fingerprint of one seed.
"""

import asyncio
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from millstream.runtime.background import Outcome
from millstream.runtime.disk import File
from millstream.testing.sim.crash_fates import random_fates
from millstream.testing.sim.world import SimNode, SimWorld

NAMES = ("a", "b", "c")
PORT = 9092
RECORD_BYTES = 8


@dataclass(frozen=True)
class Result:
    digest: str
    event_count: int
    crash_count: int
    synced_bytes: int


class Store:
    """A node's log: appends what arrives and syncs it in the background."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.file: File = node.disk.open_write("/data/log")
        node.disk.sync_directory("/data")
        self.end = self.file.size() - self.file.size() % RECORD_BYTES
        self.synced_end = 0
        self.is_syncing = False

    def append(self, data: bytes) -> None:
        self.file.write_at(self.end, data)
        self.end += len(data)
        if not self.is_syncing:
            self.is_syncing = True
            end = self.end
            self.node.background.submit(
                self.file.sync, lambda outcome: self.synced(outcome, end), name="sync"
            )

    def synced(self, outcome: Outcome[None], end: int) -> None:
        outcome.result()
        self.is_syncing = False
        self.synced_end = end


class Receiver(asyncio.Protocol):
    def __init__(self, store: Store) -> None:
        self.store = store

    def data_received(self, data: bytes) -> None:
        self.store.append(data)


class Cluster:
    """Nodes that send each other records while links are cut and one machine loses power."""

    def __init__(self, seed: int) -> None:
        self.world = SimWorld(seed)
        self.chaos = self.world.randomness.fork("chaos")
        self.nodes = {name: self.world.node(name) for name in NAMES}
        self.stores: dict[str, Store] = {}
        self.senders: dict[str, asyncio.Task[None]] = {}
        self.crash_count = 0

    async def start(self, name: str) -> None:
        node = self.nodes[name]
        store = self.stores[name] = Store(node)
        await node.network.listen(lambda: Receiver(store), host=name, port=PORT)
        self.senders[name] = asyncio.create_task(self.send(node), name=f"sender {name}")

    async def send(self, node: SimNode) -> None:
        peers = [name for name in NAMES if name != node.name]
        while True:
            await asyncio.sleep(node.randomness.between(0.0, 0.5))
            try:
                transport, _ = await node.network.connect(
                    asyncio.Protocol, host=node.randomness.choice(peers), port=PORT, timeout_s=1
                )
            except OSError:
                continue
            for _ in range(node.randomness.integer(1, 20)):
                transport.write(node.randomness.bytes(RECORD_BYTES))
            transport.close()

    async def lose_power(self, name: str) -> None:
        self.senders[name].cancel()
        self.nodes[name].lose_power()
        await asyncio.sleep(self.chaos.between(0.1, 5))
        self.nodes[name] = self.nodes[name].restore_power(random_fates(self.chaos))
        self.crash_count += 1
        await self.start(name)

    async def main(self) -> None:
        for name in NAMES:
            await self.start(name)
        for _ in range(30):
            await asyncio.sleep(self.chaos.between(0.0, 2.0))
            one, other = self.chaos.choice(NAMES), self.chaos.choice(NAMES)
            if one == other:
                await self.lose_power(one)
            else:
                self.world.network.clog(one, other, duration_s=self.chaos.between(0, 5))


def run(seed: int) -> Result:
    cluster = Cluster(seed)
    cluster.world.run(cluster.main)
    trace = cluster.world.trace
    synced_bytes = sum(store.synced_end for store in cluster.stores.values())
    return Result(trace.digest(), len(trace), cluster.crash_count, synced_bytes)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    first, second = run(seed), run(seed)
    assert first == second
    assert first.event_count > 1000
    assert first.crash_count > 0
    assert first.synced_bytes > 0


def test_different_seeds_differ() -> None:
    assert len({run(seed).digest for seed in range(6)}) == 6


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    digests = {run(5).digest}
    for hash_seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, __file__, "5"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        digests.add(done.stdout.strip())
    assert len(digests) == 1


if __name__ == "__main__":
    print(run(int(sys.argv[1])).digest)
