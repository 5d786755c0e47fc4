"""The faults of a broker's simulation. Each seed switches a random subset on."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.background import WORK_DELAY_S
from millstream.testing.sim.clock import SimClock
from millstream.testing.simulation.broker.scene import HOST, Scene, SimBroker

SLOW_LINK_S: Final = (0.0, 0.8)
SLOW_DISK_S: Final = (0.02, 0.8)
CLOCK_SKEW_MAX_MS: Final = 1_500_000

Fault = Callable[[], Awaitable[None] | None]


class Faults:
    """Injects random faults, and heals everything in the end."""

    def __init__(
        self,
        scene: Scene,
        machine: SimBroker,
        vanish: Callable[[str], None],
        randomness: SeededRandomness,
    ) -> None:
        self._scene, self._machine, self._vanish = scene, machine, vanish
        self._randomness = randomness
        self.hosts: list[str] = []
        """Of the clients."""
        self.all: dict[str, Fault] = {
            "cut": self._cut,
            "clog": self._clog,
            "slow link": self._slow_link,
            "reset": self._reset,
            "vanish": self._half_open,
            "kill": self._kill,
            "power loss": self._power_loss,
            "restart": self._restart,
            "disk full": self._disk_full,
            "slow disk": self._slow_disk,
            "clock jump": self._clock_jump,
        }
        chosen = [name for name in self.all if randomness.chance(0.45)]
        self.enabled = chosen or [randomness.choice(list(self.all))]

    async def run(self, *, duration_s: float) -> None:
        """Faults until the time is up; then none is left."""
        scene, randomness = self._scene, self._randomness
        until_s = scene.now_s() + duration_s
        while scene.now_s() < until_s:
            await asyncio.sleep(randomness.between(0.0, 1.5))
            name = randomness.choice(self.enabled)
            scene.counts[name] += 1
            scene.world.trace.note("fault", name)
            done = self.all[name]()
            if done is not None:
                await done
            self._machine.check_running()
            if randomness.chance(0.3):
                self._heal_some()
        await self.heal()

    def _heal_some(self) -> None:
        """Links and disk become good again; a cut that is never healed would end all traffic."""
        self._scene.world.network.heal_all()
        self._refill()

    def _refill(self) -> None:
        node = self._machine.node
        node.disk.storage.capacity_bytes = None
        node.background.work_delay_s = WORK_DELAY_S

    async def heal(self) -> None:
        """Everything works, and the broker is up."""
        self._heal_some()
        if not self._machine.is_up:
            await self._machine.start()

    # -- the network -----------------------------------------------------------------------

    def _some_host(self) -> str:
        return self._randomness.choice(self.hosts)

    def _direction(self) -> tuple[str, str]:
        ends = (HOST, self._some_host())
        return ends if self._randomness.chance(0.5) else ends[::-1]

    def _cut(self) -> None:
        network = self._scene.world.network
        if self._randomness.chance(0.5):
            network.partition(HOST, self._some_host())
        else:
            network.cut(*self._direction())

    def _clog(self) -> None:
        duration_s = self._randomness.between(0.01, 4.0)
        self._scene.world.network.clog(*self._direction(), duration_s=duration_s)

    def _slow_link(self) -> None:
        self._scene.world.network.slow_down(*self._direction(), delay_range_s=SLOW_LINK_S)

    async def _reset(self) -> None:
        """At once, or when answers have piled up that will never be sent."""
        network, host = self._scene.world.network, self._some_host()
        if self._randomness.chance(0.6):
            waited_s = self._randomness.between(0.1, 1.0)
            network.clog(HOST, host, duration_s=waited_s + 0.1)
            await asyncio.sleep(waited_s)
        network.reset(HOST, host)

    def _half_open(self) -> None:
        self._vanish(self._some_host())

    # -- the broker ------------------------------------------------------------------------

    async def _kill(self) -> None:
        self._machine.kill()
        await self._start_again()

    async def _power_loss(self) -> None:
        self._machine.lose_power()
        await asyncio.sleep(self._randomness.between(0.0, 3.0))
        self._machine.restore_power()
        await self._start_again()

    async def _restart(self) -> None:
        await self._machine.stop()
        await self._start_again()

    async def _start_again(self) -> None:
        await asyncio.sleep(self._randomness.between(0.0, 2.0))
        if not await self._machine.start():
            self._refill()
            await self._machine.start()

    # -- its machine -----------------------------------------------------------------------

    def _disk_full(self) -> None:
        storage = self._machine.node.disk.storage
        storage.capacity_bytes = storage.used_bytes + self._randomness.integer(0, 20_000)

    def _slow_disk(self) -> None:
        self._machine.node.background.work_delay_s = SLOW_DISK_S

    def _clock_jump(self) -> None:
        # Never so far from the producers' that their time stamps would be refused.
        clock = self._machine.node.clock
        skew_ms = clock.wall_ms() - SimClock(self._scene.world.loop).wall_ms()
        clock.jump_wall(self._randomness.integer(-CLOCK_SKEW_MAX_MS, CLOCK_SKEW_MAX_MS) - skew_ms)
