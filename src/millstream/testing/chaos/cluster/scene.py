"""A cluster of real processes, each in a network namespace of its own, and what it must promise.

    observer, client --- router --- broker-1, broker-2, broker-3, keeper (or zookeeper-1 .. 3)

The observer is never cut off: it only reads. The `wait_...` methods are the promises of a cluster
after a fault: leaders within a named time, everything in sync within another.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Protocol

from millstream.coordination.keeper.journal import SECRET_FILE
from millstream.runtime.private_files import write_private
from millstream.runtime.randomness import system_randomness
from millstream.testing.chaos.cluster.client import ClientTask
from millstream.testing.chaos.cluster.load import Load
from millstream.testing.chaos.cluster.processes import (
    SESSION_MS,
    BrokerProcess,
    Coordination,
    KeeperProcess,
    MillstreamBroker,
    ZooKeeperProcess,
)
from millstream.testing.chaos.cluster.view import ClusterView, newest, read_view, send_from_node
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import NetWorld
from millstream.testing.wait_until import wait_until
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest

BROKERS: Final = 3
PARTITIONS: Final = 6
"""Two for each broker to lead, so that nearly every fault moves some."""
ENSEMBLE: Final = 3
LEADER_MAX_S: Final = 30.0
"""From a fault to a new leader: the session of 6 s, the expiry at the next tick, an election,
and a machine with two cores that is busy with other work too."""
HEAL_MAX_S: Final = 90.0
"""From the end of a fault to all replicas in sync."""
ADMIN_MAX_S: Final = 30.0
EQUAL_MAX_S: Final = 30.0
SESSION_S: Final = SESSION_MS / 1000


class ProcessFactory(Protocol):
    """Creates the processes of a scene: ours, or a peer's to test the scene itself."""

    def coordination(self, world: NetWorld, root: Path) -> Coordination: ...

    def broker(
        self, world: NetWorld, root: Path, broker_id: int, connect: str
    ) -> BrokerProcess: ...


class MillstreamProcesses:
    """Our brokers, on our keeper or on a real ensemble."""

    def __init__(
        self, *, is_ensemble: bool = False, settings: Mapping[str, str] | None = None
    ) -> None:
        self._is_ensemble = is_ensemble
        self._settings = settings or {}
        self._secret_file = Path()

    def coordination(self, world: NetWorld, root: Path) -> Coordination:
        if not self._is_ensemble:
            keeper = KeeperProcess(world.add("keeper"), root / "keeper")
            self._secret_file = keeper.secret_file
            return Coordination([keeper], [keeper.address])
        self._secret_file = root / SECRET_FILE
        write_private(self._secret_file, f"{system_randomness().secret(32).hex()}\n")
        nodes = [world.add(f"zookeeper-{number}") for number in range(1, ENSEMBLE + 1)]
        addresses = [node.address for node in nodes]
        members = [
            ZooKeeperProcess(node, root / node.name, number, addresses)
            for number, node in enumerate(nodes, 1)
        ]
        return Coordination(members, [one.address for one in members])

    def broker(self, world: NetWorld, root: Path, broker_id: int, connect: str) -> BrokerProcess:
        node = world.add(f"broker-{broker_id}")
        coordination = {
            "zookeeper.connect": connect,
            "zookeeper.secret.file": str(self._secret_file),
        }
        settings = {**self._settings, **coordination}
        return MillstreamBroker(node, root / node.name, settings, broker_id=broker_id)


class ClusterScene:
    """Starts with `start`; `close` ends all of it."""

    def __init__(
        self,
        root: Path,
        factory: ProcessFactory,
        *,
        partitions: int = PARTITIONS,
        brokers: int = BROKERS,
    ) -> None:
        self._root = root
        self._factory = factory
        self._stack = ExitStack()
        self._load: Load | None = None
        self._era = 0
        self._brokers_count = brokers
        self.partitions: Final = partitions
        self.world: Final = self._stack.enter_context(NetWorld())
        self.observer: Final = self.world.add("eye")
        self.client: Final = self.world.add("client")
        self.coordination: Final = factory.coordination(self.world, root)
        self._stack.callback(self.coordination.close)
        self.brokers: Final[dict[int, BrokerProcess]] = {}

    def start(self) -> None:
        """Start everything and begin the first era."""
        self.coordination.start()
        for broker_id in range(1, self._brokers_count + 1):
            self.add_broker(broker_id).spawn()
        for broker in self.brokers.values():
            broker.wait_ready()
        self.begin_era()

    def add_broker(self, broker_id: int) -> BrokerProcess:
        """Add a broker, which is not started yet."""
        connect = self.coordination.connect_string
        broker = self._factory.broker(self.world, self._root, broker_id, connect)
        self._stack.callback(broker.close)
        self.brokers[broker_id] = broker
        return broker

    def close(self) -> None:
        if self._load is not None:
            self._load.close()
        self._stack.close()

    def check_alive(self) -> None:
        """Raise ChaosFailed if a process has ended by itself."""
        for process in (*self.brokers.values(), *self.coordination.members):
            process.check_alive()

    # -- eras ------------------------------------------------------------------------------

    @property
    def load(self) -> Load:
        if self._load is None:
            raise ChaosFailed("no era has begun")
        return self._load

    def begin_era(self, codec: str = "none") -> None:
        """Create a new topic with a new writer and a new reader."""
        self._era += 1
        topic = f"era-{self._era}"
        self.create_topic(topic)
        addresses = ",".join(one.address for one in self.brokers.values())
        task = ClientTask(
            bootstrap=addresses,
            topic=topic,
            partitions=self.partitions,
            history="",
            name="",
            codec=codec,
        )
        self._load = Load(self.client, self._root / topic, task)
        self._load.start()
        self._load.wait_for(1, "at the start")

    def end_era(self) -> None:
        """Delete the topic; its clients have ended before."""
        load, self._load = self.load, None
        load.close()
        request = DeleteTopicsRequest(topic_names=[load.topic], timeout_ms=10_000)
        self.administer(request, 5, lambda answer: answer.responses[0].error_code)

    def create_topic(self, topic: str) -> None:
        topic_spec = CreatableTopic(
            name=topic, num_partitions=self.partitions, replication_factor=self._brokers_count
        )
        request = CreateTopicsRequest(topics=[topic_spec], timeout_ms=10_000)
        done = (ErrorCode.TOPIC_ALREADY_EXISTS,)
        self.administer(request, 7, lambda answer: answer.topics[0].error_code, done=done)

    def administer(
        self,
        request: Any,
        version: int,
        code_of: Any,
        *,
        done: Collection[ErrorCode] = (),
    ) -> Any:
        """Retry a request until it succeeds, as a tool does; raises ChaosFailed with the errors."""
        refusals: list[str] = []
        answers: list[Any] = []

        def is_done() -> bool:
            for broker in self.up():
                try:
                    answer = send_from_node(
                        self.observer, broker.node.address, request, version, ADMIN_MAX_S
                    )
                except OSError as error:
                    refusals.append(str(error))
                    continue
                code = ErrorCode(code_of(answer))
                if code is ErrorCode.NONE or code in done:
                    answers.append(answer)
                    return True
                refusals.append(f"{broker.node}: {code.name}")
            return False

        name = type(request).__name__
        try:
            wait_until(is_done, name, timeout_s=ADMIN_MAX_S, pause_s=0.1)
        except ChaosFailed as failed:
            raise ChaosFailed(f"{failed}: {refusals[-3:]}") from failed
        return answers[-1]

    # -- observing -------------------------------------------------------------------------

    def up(self, *, but: int | None = None) -> list[BrokerProcess]:
        """Brokers that can answer."""
        return [
            one
            for one in self.brokers.values()
            if one.is_up and not one.is_paused and one.broker_id != but
        ]

    def view(self, *, but: int | None = None) -> ClusterView:
        """The newest view of all brokers that can answer, or of all but one."""
        topic = self.load.topic
        views = [read_view(self.observer, one, topic) for one in self.up(but=but)]
        return newest(one for one in views if one is not None)

    def wait_moved(self, before: ClusterView, victim: int) -> tuple[ClusterView, float]:
        """Wait until others lead what the victim led; return the view, and the time it took."""
        led, began_s = before.led_by(victim), time.monotonic()
        seen: list[ClusterView] = []

        def has_moved() -> bool:
            self.check_alive()
            seen[:] = [self.view(but=victim)]
            is_led = set(seen[0].partitions) >= set(led) and seen[0].led_by_others(led, victim)
            return is_led and seen[0].controller != victim

        what = f"what broker {victim} led is led by others (I-39)"
        wait_until(has_moved, what, timeout_s=LEADER_MAX_S, pause_s=0.02)
        return seen[0], time.monotonic() - began_s

    def wait_healthy(self) -> ClusterView:
        """Wait until all brokers report the same leaders and everything in sync (I-40)."""
        last: list[ClusterView | None] = []

        def is_healthy() -> bool:
            self.check_alive()
            self.load.take()
            last[:] = [read_view(self.observer, one, self.load.topic) for one in self.up()]
            return (
                len(last) == len(self.brokers)
                and all(one is not None and self._is_healthy(one) for one in last)
                and len({self._leadership(one) for one in last if one is not None}) == 1
            )

        try:
            wait_until(is_healthy, "all is in sync (I-40)", timeout_s=HEAL_MAX_S, pause_s=0.1)
        except ChaosFailed as failed:
            raise ChaosFailed("\n".join([str(failed), *map(str, last)])) from failed
        return newest(one for one in last if one is not None)

    def _is_healthy(self, view: ClusterView) -> bool:
        return view.is_healthy(partitions=self.partitions, brokers=self.brokers)

    @staticmethod
    def _leadership(view: ClusterView) -> tuple[object, ...]:
        leaders = sorted((one, of.leader, of.epoch) for one, of in view.partitions.items())
        return (view.controller, *leaders)

    def wait_equal(self, view: ClusterView, topic: str) -> int:
        """Wait until replicas are equal byte for byte (I-19); their size. No writer may run."""
        total = 0
        for partition, one in view.partitions.items():
            logs: dict[int, bytes] = {}

            def is_equal(
                logs: dict[int, bytes] = logs,
                partition: int = partition,
                replicas: Iterable[int] = one.replicas,
            ) -> bool:
                logs.update(
                    {id_: self.brokers[id_].log_bytes(topic, partition) for id_ in replicas}
                )
                return len(set(logs.values())) == 1

            try:
                wait_until(is_equal, "replicas are equal (I-19)", timeout_s=EQUAL_MAX_S)
            except ChaosFailed as failed:
                raise ChaosFailed(f"{failed}: {topic}-{partition} {_describe(logs)}") from failed
            total += sum(len(log) for log in logs.values())
        return total


def _describe(logs: Mapping[int, bytes]) -> str:
    shortest = min(len(log) for log in logs.values())
    alike = len({log[:shortest] for log in logs.values()}) == 1
    sizes = {broker: len(log) for broker, log in logs.items()}
    return f"sizes {sizes}, {'alike' if alike else 'different'} as far as the shortest goes"
