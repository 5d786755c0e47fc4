"""One seed, one world: a virtual loop, a network and nodes whose seams all draw from the seed."""

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.background import SimBackground
from millstream.testing.sim.clock import SimClock
from millstream.testing.sim.disk import SimDisk
from millstream.testing.sim.durability import FateChooser
from millstream.testing.sim.network import SimHost, SimNetwork
from millstream.testing.sim.trace import Trace
from millstream.testing.sim.virtual_loop import TIME_LIMIT_S, VirtualLoop

T = TypeVar("T")


class SimNode:
    """The seams of one simulated process. Its tasks belong to the code that started them."""

    def __init__(self, world: "SimWorld", name: str, disk: SimDisk, *, incarnation: int) -> None:
        self._world = world
        self.name = name
        self.incarnation = incarnation
        self.disk = disk
        self.network: SimHost = world.network.host(name)
        self.clock = SimClock(world.loop)
        self.randomness = world.randomness.fork(f"node {name} {incarnation}")
        self.background = SimBackground(world.loop, self.randomness.fork("background"), world.trace)

    def kill(self) -> None:
        """The process dies at once: connections are reset, written bytes stay."""
        self.background.kill()
        self.disk.kill()
        self._world.network.kill_host(self.name)

    def restart(self) -> "SimNode":
        """The seams of the next process after `kill`."""
        return self._next(self.disk.after_kill())

    def lose_power(self) -> None:
        """The machine stops: unsynced bytes may be lost, peers are not notified."""
        self.background.kill()
        self.disk.crash()
        self._world.network.kill_host(self.name, is_silent=True)

    def restore_power(self, choose: FateChooser) -> "SimNode":
        """The seams of the next process after `lose_power`."""
        self._world.network.revive_host(self.name)
        return self._next(self.disk.after_crash(choose))

    def _next(self, disk: SimDisk) -> "SimNode":
        return SimNode(self._world, self.name, disk, incarnation=self.incarnation + 1)


class SimWorld:
    """Everything that one simulated run consists of."""

    def __init__(self, seed: int, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self.seed = seed
        self.trace = Trace()
        self.randomness = SeededRandomness(seed)
        self.loop = VirtualLoop(self.trace, time_limit_s=time_limit_s)
        self.network = SimNetwork(self.loop, self.randomness.fork("network"), self.trace)

    def node(self, name: str, *, directories: Iterable[str] = ("/data",)) -> SimNode:
        disk = SimDisk(
            self.randomness.fork(f"disk {name}"), directories=directories, trace=self.trace
        )
        return SimNode(self, name, disk, incarnation=1)

    def run(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run to the end and close the loop; a failure carries the seed that replays it."""
        try:
            return self.loop.run_to_end(main())
        except BaseException as error:
            error.add_note(f"simulated run, seed {self.seed}")
            raise
        finally:
            self.loop.close()
