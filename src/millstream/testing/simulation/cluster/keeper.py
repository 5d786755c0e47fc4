"""The coordination service of a simulated cluster: the real keeper, observed and with lost replies.

Every transaction is reported to the ledger when it is durable. Now and then the reply to a write
that was carried out is lost with the connection: the writer cannot know the outcome.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from millstream.coordination import errors, port
from millstream.coordination.credentials import Credentials
from millstream.coordination.keeper.changes import Txn
from millstream.coordination.keeper.machine import Effect, Log
from millstream.coordination.keeper.server import KeeperDependencies, KeeperServer, KeeperSettings
from millstream.coordination.keeper.sessions import SessionRules
from millstream.observe.redaction import Secret
from millstream.testing.sim.durability import FateChooser
from millstream.testing.sim.keeper_session import WireCoordination, WireSession
from millstream.testing.sim.world import SimNode
from millstream.testing.simulation.broker.process import SimProcess
from millstream.testing.simulation.cluster.scene import ClusterScene

T = TypeVar("T")

KEEPER: Final = "keeper"
KEEPER_PORT: Final = 2181
TICK_MS: Final = 500
CREDENTIALS: Final = Credentials(Secret("the-secret-of-a-simulated-cluster"))
LOST_REPLIES: Final = "lost replies"


class _WatchedKeeper(KeeperServer):
    """Reports every transaction that is durable."""

    on_durable: Callable[[Txn], None]

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        effects = list(effects)
        super()._carry_out(effects)
        for effect in effects:
            if isinstance(effect, Log):
                self._report_when_durable(effect.txn)

    def _report_when_durable(self, txn: Txn) -> None:
        self._commits.when_durable(lambda: self.on_durable(txn))


class KeeperMachine:
    """The keeper's process through all its lives."""

    def __init__(self, scene: ClusterScene) -> None:
        self._scene = scene
        self.node: SimNode = scene.world.node(KEEPER)
        self.process: SimProcess | None = None
        self.server: _WatchedKeeper | None = None

    @property
    def is_up(self) -> bool:
        return self.server is not None

    async def start(self) -> None:
        scene, node = self._scene, self.node
        process = SimProcess(scene.world.loop, KEEPER, node.network)
        dependencies = KeeperDependencies(
            network=process.network,
            disk=node.disk,
            background=node.background,
            clock=node.clock,
            randomness=node.randomness,
        )
        settings = KeeperSettings(
            directory="/data/keeper",
            host=KEEPER,
            port=KEEPER_PORT,
            rules=SessionRules(tick_ms=TICK_MS),
            log_roll_bytes=20_000,
            credentials=CREDENTIALS,
        )
        server = process.run(_WatchedKeeper, dependencies, settings)
        server.on_durable = scene.on_durable
        await process.spawn(server.start(), "start")
        state = server.machine.state
        scene.on_keeper_restart(state.nodes, state.last_zxid)
        self.process, self.server = process, server

    def kill(self) -> None:
        self._end()
        self.node.kill()
        self.node = self.node.restart()

    def lose_power(self) -> None:
        self._end()
        self.node.lose_power()

    def restore_power(self, choose: FateChooser) -> None:
        self.node = self.node.restore_power(choose)

    def _end(self) -> None:
        if self.process is not None:
            self._scene.pauses.resume(KEEPER)
            self.process.kill()
        self.process = self.server = None

    async def stop(self) -> None:
        if self.process is not None and self.server is not None:
            await self.process.spawn(self.server.stop(), "stop")
            self._end()


class LossyCoordination:
    """The coordination port of one broker, whose successful writes may lose their answers."""

    def __init__(self, scene: ClusterScene, host: str, process: SimProcess, node: SimNode) -> None:
        self._scene, self._host = scene, host
        servers = [(KEEPER, KEEPER_PORT)]
        self._inner = WireCoordination(process.network, node.clock, servers, CREDENTIALS)
        self._chance = node.randomness.fork("lost replies")
        self.sessions: list[LossySession] = []

    async def connect(self, *, timeout_ms: int, wait_s: float) -> "LossySession":
        session = await self._inner.connect(timeout_ms=timeout_ms, wait_s=wait_s)
        self.sessions.append(LossySession(session, self._loses))
        return self.sessions[-1]

    @property
    def has_lost_session(self) -> bool:
        """Its last session is gone."""
        return bool(self.sessions) and self.sessions[-1].state is port.SessionState.LOST

    def _loses(self) -> bool:
        """Whether this answer is lost; then the connection is gone, too."""
        if not self._chance.chance(self._scene.lost_reply_chance):
            return False
        self._scene.counts[LOST_REPLIES] += 1
        self._scene.world.trace.note("lost reply", self._host)
        self._scene.world.network.reset(self._host, KEEPER)
        return True


class LossySession:
    """One session; everything but the writes goes to the inner one unchanged."""

    def __init__(self, inner: WireSession, loses: Callable[[], bool]) -> None:
        self._inner = inner
        self._loses = loses

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def create(
        self, path: str, data: bytes = b"", *, kind: port.NodeKind = port.NodeKind.PERSISTENT
    ) -> port.Created:
        return self._answered(await self._inner.create(path, data, kind=kind))

    async def set(self, path: str, data: bytes, *, version: int) -> port.NodeStat:
        return self._answered(await self._inner.set(path, data, version=version))

    async def delete(self, path: str, *, version: int) -> None:
        await self._inner.delete(path, version=version)
        self._answered(None)

    async def multi(self, operations: Sequence[port.Operation]) -> list[port.MultiResult]:
        return self._answered(await self._inner.multi(operations))

    def _answered(self, answer: T) -> T:
        if self._loses():
            # The inner session notices in the next loop iteration, and must not be used until then.
            self._inner._suspend()  # noqa: SLF001
            raise errors.ConnectionLost
        return answer
