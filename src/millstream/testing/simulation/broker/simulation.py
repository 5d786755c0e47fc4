"""One broker, several clients and many kinds of faults, from one seed.

Producers, consumers and an administrator work while links are cut, delayed and reset, machines
vanish, the disk is slow or full, and the broker is restarted, killed or loses its power. In the end
everything is healed and read, and the history of each client's answers is checked for anomalies
(`history/checker.py`). While it runs every answer is checked (I-36), the limits (I-37), what every
start finds on the disk (I-02, I-11) and what every stop leaves behind (I-42).

Each seed switches a random subset of faults and work on. The same seed gives the same run, event
by event.
"""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from millstream.model.errors import OperatingError
from millstream.model.invariant import InvariantViolated
from millstream.runtime.randomness import SeededRandomness
from millstream.testing.history.checker import check_history
from millstream.testing.sim.disk import ProcessDiedError
from millstream.testing.simulation.broker.admin import Admin
from millstream.testing.simulation.broker.client import Client
from millstream.testing.simulation.broker.consumers import Consumer, LastReader
from millstream.testing.simulation.broker.faults import Faults
from millstream.testing.simulation.broker.producers import IdempotentProducer, NonIdempotentProducer
from millstream.testing.simulation.broker.scene import Scene, SimBroker, Topic
from millstream.testing.simulation.broker.watch import SimulationFailed, check_idle, require

SECONDS_PER_STEP: Final = 0.1
"""Virtual time for each requested step."""
FINISH_S: Final = 90.0
"""After the faults everything that was begun must end within this virtual time (I-41)."""
ANSWER_S: Final = 10.0
IDLE_END_S: Final = 30.0
"""By then a broker has noticed that all its clients are gone."""

FAULTS: Final = (
    "cut",
    "clog",
    "slow link",
    "reset",
    "vanish",
    "kill",
    "power loss",
    "restart",
    "disk full",
    "slow disk",
    "clock jump",
)
ADMIN_ACTIONS: Final = (
    "create topic",
    "delete topic",
    "create partitions",
    "alter config",
    "delete records",
    "list topics",
)
EVENTS: Final = (
    "acknowledged",
    "records polled",
    "sends without answer",
    "tails lost",
    "consumers fenced",
    "truncations noticed",
    "positions out of range",
    "sessions lost",
    "sessions probed",
    "producers restarted",
)
INTERESTING: Final = frozenset({*FAULTS, *ADMIN_ACTIONS, *EVENTS})
"""What many seeds together must have met; otherwise something is switched off by mistake."""


class BrokerRun(NamedTuple):
    """How one seed went."""

    counts: Counter[str]
    digest: str
    """Of everything that happened, in order."""


def simulate_broker(seed: int, *, steps: int) -> Counter[str]:
    """Run one seed; raises at the first invariant that the broker violates."""
    return run_broker(seed, steps=steps).counts


def run_broker(seed: int, *, steps: int) -> BrokerRun:
    """As `simulate_broker`, with the fingerprint of the run."""
    with errors_are_failures():
        simulation = BrokerSimulation(seed, duration_s=steps * SECONDS_PER_STEP)
        try:
            simulation.scene.world.run(simulation.run)
        finally:
            # A started broker freezes the objects of its process, as is right for a real one.
            gc.unfreeze()
    return BrokerRun(simulation.scene.counts, simulation.scene.world.trace.digest())


class BrokerSimulation:
    """The run of one seed."""

    def __init__(self, seed: int, *, duration_s: float) -> None:
        self.scene = Scene(seed)
        self._duration_s = duration_s
        self._randomness = self.scene.randomness.fork("play")
        one = ["/data"]
        self._machine = SimBroker(
            self.scene,
            self._randomness.choice([one, one, ["/data1", "/data2"]]),
            {
                "log.flush.offset.checkpoint.interval.ms": "2000",
                "log.retention.check.interval.ms": "3000",
            },
        )
        self._faults = Faults(
            self.scene, self._machine, self._vanish, self._randomness.fork("faults")
        )
        self._clients: dict[str, Client] = {}
        self._lives: Counter[str] = Counter()
        self._targets: list[tuple[Topic, int]] = []

    async def run(self) -> None:
        await self._machine.start()
        admin = Admin(self.scene, "admin", self._randomness.fork("admin"))
        admin.enabled_actions = frozenset(
            one for one in ADMIN_ACTIONS if self._randomness.chance(0.6)
        )
        await admin.process.spawn(self._make_topics(admin), "topics")
        self._clients["admin"] = admin
        admin.start()
        for name in ("idempotent-0", "idempotent-1", "plain-0", "consumer-0", "consumer-1"):
            self._start_client(name)
        for name in ("plain-1", "consumer-2", "consumer-3", "consumer-4"):
            if self._randomness.chance(0.4):
                self._start_client(name)
        self._faults.hosts = list(self._clients)
        await self._faults.run(duration_s=self._duration_s)
        await self._finish()

    async def _make_topics(self, admin: Admin) -> None:
        for name, is_durable in (("durable", True), ("lazy", False)):
            count = self._randomness.integer(1, 4)
            topic = await admin.create(name, count, is_durable=is_durable)
            self._targets += [(topic, index) for index in range(count)]

    # -- clients ---------------------------------------------------------------------------

    def _start_client(self, name: str) -> None:
        self._lives[name] += 1
        life = self._lives[name]
        randomness = self._randomness.fork(f"{name} {life}")
        # Its values and lanes must not be those of the life before; its host is the same.
        client: Client
        match name.partition("-")[0]:
            case "idempotent":
                client = IdempotentProducer(self.scene, name, randomness)
                client.targets = self._some_targets(randomness)
            case "plain":
                client = NonIdempotentProducer(self.scene, name, randomness)
            case _:
                client = Consumer(self.scene, name, randomness)
                client.assign(self._some_targets(randomness))
        client.life = life
        self._clients[name] = client
        client.start()

    def _some_targets(self, randomness: SeededRandomness) -> list[tuple[Topic, int]]:
        some = [one for one in self._targets if randomness.chance(0.5)]
        return some or [self._targets[0]]

    def _vanish(self, name: str) -> None:
        """A client's machine is gone, and some time later another one replaces it."""
        client = self._clients[name]
        if name == "admin" or client.process.is_dead:
            return
        client.vanish()
        delay_s = self._randomness.between(0.0, 5.0)
        self.scene.world.loop.call_later(delay_s, self._come_back, name)

    def _come_back(self, name: str) -> None:
        if self._clients[name].process.is_dead:
            self.scene.world.network.revive_host(name)
            self._start_client(name)

    # -- the end ---------------------------------------------------------------------------

    async def _finish(self) -> None:
        scene = self.scene
        for name in list(self._clients):
            self._come_back(name)
        scene.is_ending = True
        consumers = [one for one in self._clients.values() if isinstance(one, Consumer)]
        workers = [one for one in self._clients.values() if not isinstance(one, Consumer)]
        await scene.until(
            lambda: all(one.is_finished for one in workers),
            "I-41 what was begun did not end after the faults",
            limit_s=FINISH_S,
        )
        for consumer in consumers:
            consumer.recheck_ends()
        await scene.until(
            lambda: all(one.is_at_end for one in consumers),
            "I-33 consumers did not catch up after the faults",
            limit_s=FINISH_S,
        )
        scene.is_quiet = True
        await asyncio.sleep(ANSWER_S)
        scene.is_quiet = False
        overdue = self._machine.answers.overdue(limit_s=ANSWER_S)
        require(not overdue, "I-36 requests are not answered", overdue=overdue)
        for consumer in consumers:
            consumer.is_finished = True
        await self._read_everything()
        await self._check_quiet()
        anomalies = check_history(scene.history)
        if anomalies:
            lines = [f"{one.kind}: {one.text[:600]}" for one in anomalies[:8]]
            raise SimulationFailed(f"{len(anomalies)} anomalies\n" + "\n".join(lines))

    async def _read_everything(self) -> None:
        """Half of the time after a clean restart: the next process must find the same."""
        admin = Admin(self.scene, "admin", self._randomness.fork("last admin"))
        first = self._clients["admin"]
        if isinstance(first, Admin):
            admin.ledger = first.ledger
        if self._randomness.chance(0.5):
            await self._machine.stop()
            await self._machine.start()
        await admin.process.spawn(admin.finish(), "last check")
        reader = LastReader(self.scene, "reader", self._randomness.fork("reader"))
        topics = list(self.scene.topics.values())
        await reader.process.spawn(reader.read_all(topics), "last read")

    async def _check_quiet(self) -> None:
        for client in self._clients.values():
            client.process.kill()
            self.scene.world.network.kill_host(client.name)
        await asyncio.sleep(IDLE_END_S)
        broker = self._machine.broker
        if broker is None:
            raise SimulationFailed("the broker is down at the end")
        require(not broker.server.connection_count, "I-42 connections of clients that are gone")
        check_idle(broker)
        await self._machine.stop()


# -- bugs that the broker logs and survives ----------------------------------------------------


class _Failures(logging.Handler):
    """Keeps the first logged error that is not due to the disk or a dead process."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: logging.LogRecord | None = None
        self.error: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        named = getattr(record, "millstream_fields", {}).get("error")
        error = named if error is None and isinstance(named, BaseException) else error
        is_expected = error is None or isinstance(
            error, ProcessDiedError | OSError | OperatingError
        )
        if self.first is None and not is_expected:
            self.first, self.error = record, error


@contextmanager
def errors_are_failures() -> Iterator[None]:
    """An exception that the broker turned into a closed connection is still a bug."""
    failures, after = _Failures(), ""
    logger = logging.getLogger("millstream")
    level = logger.level
    logger.addHandler(failures)
    logger.setLevel(logging.ERROR)
    try:
        yield
    except (Exception, InvariantViolated) as error:
        # What was logged came first, and is the cause more often than not.
        if failures.first is None:
            raise
        after = f"\nand then: {error}"
    finally:
        logger.removeHandler(failures)
        logger.setLevel(level)
    if failures.first is not None:
        message = failures.first.getMessage()
        failure = SimulationFailed(f"the broker logged an error: {message}{after}")
        raise failure from failures.error
