"""A process that is stopped and woken, in virtual time."""

import asyncio

from millstream.testing.sim.world import SimWorld
from millstream.testing.simulation.broker.process import SimProcess
from millstream.testing.simulation.process_pause import Pauses


class Echo(asyncio.BufferedProtocol):
    def __init__(self, world: SimWorld, heard: list[tuple[float, bytes]]) -> None:
        self._world, self._heard = world, heard
        self._buffer = bytearray(100)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._heard.append((self._world.loop.time(), bytes(self._buffer[:nbytes])))


def test_nothing_of_a_stopped_process_happens_until_it_is_woken() -> None:
    world = SimWorld(1)
    pauses = Pauses(world.loop, world.network)
    ticks: dict[str, list[float]] = {"one": [], "two": []}

    async def tick(name: str) -> None:
        for _ in range(10):
            await asyncio.sleep(1)
            ticks[name].append(world.loop.time())

    async def main() -> None:
        processes = {}
        tasks = []
        for name in ticks:
            processes[name] = SimProcess(world.loop, name, world.network.host(name))
            tasks.append(processes[name].spawn(tick(name), "tick"))
        await asyncio.sleep(2.5)
        pauses.pause("one", processes["one"])
        assert pauses.is_paused("one")
        await asyncio.sleep(5)
        pauses.resume("one")
        await asyncio.gather(*tasks)

    world.run(main)
    assert ticks["two"] == [float(second) for second in range(1, 11)]
    assert ticks["one"] == [1.0, 2.0, 7.5, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14.5]


def test_bytes_wait_for_a_stopped_process() -> None:
    world = SimWorld(2)
    pauses = Pauses(world.loop, world.network)
    heard: list[tuple[float, bytes]] = []

    async def main() -> None:
        one = SimProcess(world.loop, "one", world.network.host("one"))
        two = SimProcess(world.loop, "two", world.network.host("two"))
        await one.network.listen(lambda: Echo(world, heard), host="one", port=1)
        transport, _ = await two.network.connect(
            lambda: Echo(world, []), host="one", port=1, timeout_s=1
        )
        pauses.pause("one", one)
        transport.write(b"late")
        await asyncio.sleep(3)
        assert heard == []
        pauses.resume("one")
        await asyncio.sleep(1)

    world.run(main)
    assert b"".join(data for _, data in heard) == b"late"
    assert all(at_s >= 3 for at_s, _ in heard)


def test_a_stopped_process_can_be_killed() -> None:
    world = SimWorld(3)
    pauses = Pauses(world.loop, world.network)
    ticks: list[float] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(world.loop.time())

    async def main() -> None:
        one = SimProcess(world.loop, "one", world.network.host("one"))
        one.spawn(tick(), "tick")
        await asyncio.sleep(1.5)
        pauses.pause("one", one)
        await asyncio.sleep(1.5)
        pauses.resume("one")
        one.kill()
        await asyncio.sleep(5)

    world.run(main)
    assert ticks == [1.0]
