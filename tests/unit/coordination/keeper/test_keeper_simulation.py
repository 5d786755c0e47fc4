"""A keeper that is killed, loses its power and its connections while clients write and read.

What was acknowledged stays, what one client saw never goes back for another, a multi is there as
a whole or not at all, sessions outlive their server, and nobody's node outlives its session.
"""

import asyncio
import errno
from collections import Counter
from contextlib import suppress

import pytest

from kits.coordination.coordination_kit import (
    KEEPER,
    SHORT_SESSION_MS,
    SimulatedWorld,
    World,
    eventually_true,
)
from millstream.coordination import errors
from millstream.coordination.port import Create, NodeKind, NodeStat, Session, SessionState, Set
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.crash_fates import random_fates
from millstream.testing.sim.disk_faults import DiskFault, DiskOperation

SEEDS = range(1, 21)
CLIENTS = 3
FAULTS = 6
CALM_S = (0.01, 0.4)


class Known:
    """What clients have been told, by node: nothing of it may be taken back."""

    def __init__(self) -> None:
        self.versions: dict[str, int] = {}
        self.acknowledged: dict[str, int] = {}
        self.attempted: dict[str, int] = {}
        self.events: Counter[str] = Counter()

    def floor(self, path: str) -> int:
        """What anybody has seen by now; whoever asks from now on must see as much."""
        return self.versions.get(path, 0)

    def saw(self, path: str, version: int, floor: int) -> None:
        assert version >= floor, f"{path} at {version}, was at {floor} before the question"
        self.versions[path] = max(version, self.floor(path))


class Client:
    """Counts up two nodes of its own in one multi, and reads those of the others."""

    def __init__(self, world: SimulatedWorld, name: str, known: Known) -> None:
        self._world = world
        self.name = name
        self._known = known
        self._random = SeededRandomness(f"{world.world.seed}/{name}")
        self.left, self.right = f"{world.root}/{name}-left", f"{world.root}/{name}-right"
        self.is_over = False

    async def run(self) -> None:
        while not self.is_over:
            try:
                session = await self._world.open(self.name, SHORT_SESSION_MS)
            except errors.CannotConnect:
                continue
            with suppress(errors.SessionLost):
                await self._live(session)
            await session.close()

    async def _live(self, session: Session) -> None:
        while not self.is_over:
            try:
                await self._step(session)
            except errors.ConnectionLost as error:
                self._known.events["in doubt"] += error.is_in_doubt
                await session.connected()
        assert session.state is not SessionState.LOST or not self.is_over

    async def _step(self, session: Session) -> None:
        floor = self._known.floor(self.left)
        stat = await session.exists(self.left)
        if stat is None:
            nodes = [Create(path=path, data=b"0") for path in (self.left, self.right)]
            await session.multi(nodes)
            self._known.acknowledged.setdefault(self.left, 0)
            return
        self._known.saw(self.left, stat.version, floor)
        number = stat.version + 1
        self._known.attempted[self.left] = number
        data = str(number).encode()
        await session.multi(
            [
                Set(path=self.left, data=data, version=stat.version),
                Set(path=self.right, data=data, version=stat.version),
                Create(path=f"{self.left}/n-", kind=NodeKind.PERSISTENT_SEQUENTIAL),
            ]
        )
        self._known.acknowledged[self.left] = number
        self._known.saw(self.left, number, floor)
        self._known.events["acknowledged"] += 1
        other = f"{self._world.root}/client{self._random.integer(0, CLIENTS)}-left"
        floor = self._known.floor(other)
        seen = await session.exists(other)
        if seen is not None:
            self._known.saw(other, seen.version, floor)
        await asyncio.sleep(self._random.between(0, 0.02))


async def do_harm(world: SimulatedWorld, random: SeededRandomness, known: Known) -> None:
    await asyncio.sleep(random.between(*CALM_S))
    match random.integer(0, 4):
        case 0:
            known.events["kill"] += 1
            await world.kill_keeper()
        case 1 | 2:
            known.events["power"] += 1
            dark_s = random.choice([0.05, 0.5, 3.0])
            await world.crash_keeper(random_fates(random.fork("fates")), dark_s)
        case _:
            known.events["cut"] += 1
            name = f"client{random.integer(0, CLIENTS)}"
            world.world.network.reset(name, KEEPER)
            world.world.network.clog(KEEPER, name, duration_s=random.between(0.1, 4.0))


async def check(session: Session, world: SimulatedWorld, known: Known) -> None:
    """What is there now is what was acknowledged, or one step more; writers may go on."""
    for index in range(CLIENTS):
        left, right = (f"{world.root}/client{index}-{side}" for side in ("left", "right"))
        if left not in known.acknowledged:
            continue
        acknowledged, floor = known.acknowledged[left], known.floor(left)
        data, stat = await session.get(left)
        assert acknowledged <= stat.version <= known.attempted.get(left, 0)
        assert stat.version == int(data)
        known.saw(left, stat.version, floor)
        later = await session.get(right)
        assert later.stat.version >= stat.version  # the two change together
        names = (await session.children(left)).names
        assert names == [f"n-{number:010d}" for number in range(len(names))]
        assert len(names) >= later.stat.version


async def check_at_rest(session: Session, world: SimulatedWorld, known: Known) -> None:
    await check(session, world, known)
    for index in range(CLIENTS):
        left, right = (f"{world.root}/client{index}-{side}" for side in ("left", "right"))
        data, stat = await session.get(left)
        assert (await session.get(right)).data == data
        assert (await session.children(left)).stat.children_count == stat.version


def simulate(seed: int, world: SimulatedWorld | None = None) -> Counter[str]:
    world, known = world or SimulatedWorld(seed), Known()

    async def story(_world: World) -> None:
        random = SeededRandomness(f"{seed}/harm")
        clients = [Client(world, f"client{index}", known) for index in range(CLIENTS)]
        tasks = [asyncio.ensure_future(client.run()) for client in clients]
        for _ in range(FAULTS):
            await do_harm(world, random, known)
            await check(await world.open("checker"), world, known)
        world.world.network.heal_all()
        for client in clients:
            client.is_over = True
        await asyncio.gather(*tasks)
        await check_at_rest(await world.open("checker"), world, known)

    world.play(story)
    return known.events


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_or_seen_is_lost(seed: int) -> None:
    """Replay of one seed:

    pytest tests/unit/coordination/keeper/test_keeper_simulation.py -k 'seen_is_lost and [SEED]'
    """
    assert simulate(seed)["acknowledged"] > 10


@pytest.mark.slow
def test_the_seeds_meet_every_kind_of_fault() -> None:
    met = sum((simulate(seed) for seed in range(1, 9)), Counter[str]())
    assert met["kill"] >= 5
    assert met["power"] >= 10
    assert met["cut"] >= 5
    assert met["in doubt"] >= 10


def test_one_seed_one_run() -> None:
    worlds = [SimulatedWorld(3), SimulatedWorld(3), SimulatedWorld(4)]
    for world in worlds:
        simulate(world.world.seed, world)
    digests = [world.world.trace.digest() for world in worlds]
    assert digests[0] == digests[1] != digests[2]


async def stat_of(session: Session, path: str) -> NodeStat | None:
    """Asked again until there is an answer."""
    while True:
        try:
            await session.connected()
            return await session.exists(path)
        except errors.ConnectionLost:
            continue


@pytest.mark.parametrize("dark_s", [0.5, 30.0])
def test_a_session_outlives_its_server_with_its_whole_time(dark_s: float) -> None:
    """However long the server was away: only time in which it was there counts."""
    world = SimulatedWorld(5)

    async def story(_: World) -> None:
        one = await world.open("one", SHORT_SESSION_MS)
        path = f"{world.root}/e"
        await one.create(path, kind=NodeKind.EPHEMERAL)
        await world.crash_keeper(random_fates(SeededRandomness(5)), dark_s)
        stat = await stat_of(one, path)
        assert stat is not None
        assert stat.owner == one.session_id
        two = await world.open("two")
        world.cut("one")
        await world.kill_keeper()
        started_s = world.world.loop.time()

        async def is_gone() -> bool:
            return await stat_of(two, path) is None

        await eventually_true(world, is_gone, "the node of a client that stays away goes")
        assert world.world.loop.time() - started_s >= SHORT_SESSION_MS / 1000

    world.play(story)


def test_a_server_that_was_held_up_does_not_blame_its_clients() -> None:
    world = SimulatedWorld(6)

    async def story(_: World) -> None:
        one = await world.open("one", SHORT_SESSION_MS)
        await one.create(f"{world.root}/e", kind=NodeKind.EPHEMERAL)
        # As if the loop had hung: pings wait, and the next tick comes three seconds late.
        world.server._ticked_ms -= 3000
        for live in world.server.machine.sessions._live.values():
            live.deadline_ms -= 3000
        assert world.server._tick is not None
        world.server._tick.cancel()
        world.process.run(world.server._on_tick)
        assert await one.exists(f"{world.root}/e") is not None
        assert one.state is SessionState.CONNECTED

    world.play(story)


@pytest.mark.parametrize(
    ("operation", "number"), [("sync", errno.EIO), ("write", errno.ENOSPC), ("write", errno.EIO)]
)
def test_a_disk_that_fails_ends_the_server_and_nothing_is_answered(
    operation: DiskOperation, number: int
) -> None:
    world = SimulatedWorld(7)

    async def story(_: World) -> None:
        one = await world.open("one")
        await one.create(f"{world.root}/before")
        world.node.disk.faults.fail_next(operation, number, path_part="/log.")
        with pytest.raises(errors.ConnectionLost):
            await one.create(f"{world.root}/after")
        assert isinstance(world.server.failure, OSError)
        assert world.server.ended.is_set()
        await world.crash_keeper(random_fates(SeededRandomness(1)), 0.1)
        assert await stat_of(one, f"{world.root}/before") is not None

    world.play(story)


def test_a_snapshot_without_room_is_made_later_and_nothing_is_lost() -> None:
    world = SimulatedWorld(8)

    async def story(_: World) -> None:
        one = await world.open("one")
        path = f"{world.root}/n"
        await one.create(path)

        def snapshots() -> list[str]:
            names = world.node.disk.list_directory("/data/keeper")
            return [name for name in names if name.startswith("snapshot.")]

        async def write_for_a_while() -> None:
            stat = await one.exists(path)
            assert stat is not None
            for version in range(stat.version, stat.version + 40):
                await one.set(path, bytes(100), version=version)

        world.node.disk.faults.plan(
            DiskFault(operation="write", errno=errno.ENOSPC, path_part="/snapshot.", times=None)
        )
        await write_for_a_while()
        assert snapshots() == []  # nor half of one
        world.node.disk.faults.heal()
        await write_for_a_while()
        assert snapshots()
        await world.kill_keeper()
        stat = await stat_of(one, path)
        assert stat is not None
        assert stat.version == 80

    world.play(story)
