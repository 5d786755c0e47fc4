"""Requests over a network that delays, cuts and resets: each gets its own answer or an error.

The servers are honest and slow at random; the network is not. What is checked is the promise that
everything above `rpc` builds on: an answer is never taken for another request's, everybody is told
exactly once and in time, and a request that is said not to have been processed never was.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kits.rpc.rpc_server import PORT, Asked, Server, Session, echo, name_of, question
from millstream.rpc.backoff import Backoff
from millstream.rpc.connections import Address, Connections
from millstream.rpc.errors import RpcError
from millstream.rpc.settings import RpcSettings
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.sim.world import SimWorld
from millstream.wire.api_keys import ApiKey
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse

TIMEOUT_S = 4.0
SETTINGS = RpcSettings(
    connect_timeout_s=2.0, request_timeout_s=TIMEOUT_S, in_flight_max=5, idle_s=3.0
)
HOSTS = ("one", "two")


class SlowServer(Server):
    """Answers in order, each after a random time; notes every name it saw."""

    def __init__(self, randomness: SeededRandomness, seen: set[str]) -> None:
        super().__init__(self.take)
        self._randomness = randomness
        self._seen = seen
        self._ready_s: dict[Session, float] = {}

    def take(self, session: Session, asked: Asked) -> None:
        topics = MetadataRequest.decode(asked.body, asked.version).topics or []
        self._seen.update(one.name or "" for one in topics)
        loop = asyncio.get_running_loop()
        delay_s = self._randomness.choice([0.0, 0.0, 0.0, 0.01, 0.05, 0.5])
        due_s = max(self._ready_s.get(session, 0.0), loop.time()) + delay_s
        self._ready_s[session] = due_s
        loop.call_at(due_s, session.transport.write, echo(asked))


class Run:
    """One seed's world: two servers, one client, faults, and what came of every request."""

    def __init__(self, seed: int, request_count: int) -> None:
        self.world = SimWorld(seed)
        self.randomness = self.world.randomness.fork("test")
        self.seen: set[str] = set()
        self.outcomes: dict[str, list[str | Exception | None]] = {}
        self.names = [f"{'long ' * 2000 if n % 13 == 5 else ''}{n}" for n in range(request_count)]
        self.connections = Connections(
            self.world.network.host("client"),
            SETTINGS,
            self.randomness.fork("backoff"),
            backoff=Backoff(),
        )

    def execute(self) -> None:
        self.world.run(self._main)

    async def _main(self) -> None:
        network = self.world.network
        for host in HOSTS:
            server = SlowServer(self.randomness.fork(host), self.seen)
            await server.listen(network.host(host), host)
        faults = asyncio.create_task(self._faults())
        async with asyncio.TaskGroup() as tasks:
            for name in self.names:
                await asyncio.sleep(self.randomness.choice([0.0, 0.0, 0.001, 0.3]))
                way: Callable[[str], asyncio.Task[None]] = self.randomness.choice(
                    [
                        lambda one: tasks.create_task(self._ask(one)),
                        lambda one: tasks.create_task(self._ask_raw(one)),
                        lambda one: tasks.create_task(self._ask_and_give_up(one)),
                    ]
                )
                way(name)
        faults.cancel()
        network.heal_all()
        await self.connections.close()

    def _told(self, name: str, outcome: str | Exception | None) -> None:
        self.outcomes.setdefault(name, []).append(outcome)

    def _address(self) -> Address:
        return Address(self.randomness.choice(HOSTS), PORT)

    async def _ask(self, name: str) -> None:
        start_s = self.world.loop.time()
        try:
            connection = await self.connections.get(self._address())
            start_s = self.world.loop.time()
            self._told(name, name_of(await connection.send(question(name))))
        except RpcError as error:
            self._told(name, error)
        assert self.world.loop.time() - start_s <= TIMEOUT_S * 4

    async def _ask_and_give_up(self, name: str) -> None:
        try:
            async with asyncio.timeout(self.randomness.between(0, 1)):
                await self._ask(name)
        except TimeoutError as error:
            self._told(name, error)

    async def _ask_raw(self, name: str) -> None:
        finished = asyncio.Event()

        def done(version: int, outcome: memoryview | RpcError) -> None:
            if isinstance(outcome, memoryview):
                self._told(name, name_of(MetadataResponse.decode(outcome, version)))
            else:
                self._told(name, outcome)
            finished.set()

        try:
            connection = await self.connections.get(self._address())
            version = connection.version_of(MetadataRequest)
            body = question(name).encode(version)
            connection.send_raw(ApiKey.METADATA, version, [body], partial(done, version))
        except RpcError as error:
            self._told(name, error)
            return
        async with asyncio.timeout(TIMEOUT_S + 1):
            await finished.wait()

    async def _faults(self) -> None:
        network, randomness = self.world.network, self.randomness.fork("faults")
        while True:
            await asyncio.sleep(randomness.between(0.0, 2.0))
            host = randomness.choice(HOSTS)
            match randomness.integer(0, 5):
                case 0:
                    network.reset("client", host)
                case 1:
                    network.clog("client", host, duration_s=randomness.between(0, 6))
                case 2:
                    network.clog(host, "client", duration_s=randomness.between(0, 6))
                case 3:
                    network.slow_down(host, "client", delay_range_s=(0.0, 1.0))
                case _:
                    network.heal_all()

    def check(self) -> None:
        assert set(self.outcomes) == set(self.names)
        for name, told in self.outcomes.items():
            assert len(told) == 1, f"{name} was told {told}"
            (outcome,) = told
            if isinstance(outcome, RpcError):
                if not outcome.may_have_been_processed:
                    assert name not in self.seen, f"{name} was processed, but: {outcome}"
            elif not isinstance(outcome, TimeoutError):
                assert outcome == name


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), request_count=st.integers(1, 60))
def test_each_request_gets_its_own_answer_or_an_error(seed: int, request_count: int) -> None:
    run = Run(seed, request_count)
    run.execute()
    run.check()


@pytest.mark.parametrize("seed", range(5))
def test_faults_and_answers_both_happen(seed: int) -> None:
    """The property above says something only if both occur."""
    run = Run(seed, 150)
    run.execute()
    run.check()
    outcomes = [told[0] for told in run.outcomes.values()]
    assert sum(isinstance(one, str) for one in outcomes) > 10
    assert sum(isinstance(one, RpcError) for one in outcomes) > 5
