"""One broker without sockets, for the handlers that show and change topics.

Every request goes through its bytes and back, and so does every answer: what a version cannot say
is noticed.
"""

import asyncio
import inspect
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar, cast

from kits.broker.versions import versions_of
from kits.controller.controller_kit import METADATA, ROOT
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.broker.requests.context import Context, RequestFacts
from millstream.broker.requests.services import Services
from millstream.controller.image import BrokerImage, Endpoint
from millstream.controller.standalone.controller import StandaloneController
from millstream.controller.topics import NewTopic
from millstream.model.ids import BrokerId, TopicPartition
from millstream.observe.client_log import ClientLog
from millstream.replication.partitions import Partitions
from millstream.runtime.background import Outcome
from millstream.runtime.randomness import SeededRandomness
from millstream.runtime.scheduler import run_blocking
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.storage.ports import LeadershipListener
from millstream.testing.sim import virtual_loop
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk
from millstream.wire.errors import ErrorCode

R = TypeVar("R")

ME = BrokerId(1)
INSIDE, OUTSIDE = "PLAINTEXT", "OUTSIDE"


class _Peer:
    """A connection that came on one listener."""

    def __init__(self, listener: str, proven_broker: BrokerId | None = None) -> None:
        self.listener = listener
        self.proven_broker = proven_broker
        self.client_host = "127.0.0.1"
        self.local_host = "127.0.0.1"
        self.connection_id = 1
        self.is_open = True


class Desk:
    """A broker with its logs and its controller on a simulated disk."""

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        disk: SimDisk | None = None,
        listeners: Mapping[str, LeadershipListener] | None = None,
    ) -> None:
        self.proven_broker: BrokerId | None = None
        """That the sender of the next requests has proven to be."""
        self.disk = disk or SimDisk(directories=[ROOT, "/other"])
        clock, randomness, background = ManualClock(), SeededRandomness(4), InlineBackground()
        directories = [ROOT, "/other"]
        static = {"broker.id": "1", "log.dirs": ",".join(directories), **(settings or {})}
        self.configs = BrokerConfigs(static)
        self.logs = LogManager(
            StorageDependencies(self.disk, clock, randomness, background), directories
        )
        self.controller = StandaloneController(
            disk=self.disk,
            background=background,
            randomness=randomness,
            directories=directories,
            broker_id=ME,
        )
        self.controller.start()
        self.logs.start(lambda *_: self.configs.log_config({}))
        self.partitions = Partitions(
            self.logs, self.configs, None, broker_id=ME, listeners=listeners
        )
        endpoints = (Endpoint(INSIDE, "inside", 9092), Endpoint(OUTSIDE, "outside", 9093))
        self.controller.register(BrokerImage(ME, endpoints, "r1"))
        self.services = Services(
            broker_id=ME,
            clock=clock,
            randomness=randomness,
            timers=cast("Any", None),
            responder=cast("Any", None),
            configs=self.configs,
            controller=self.controller,
            logs=self.logs,
            partitions=self.partitions,
            fetch_sessions=cast("Any", None),
            producer_ids=cast("Any", None),
            client_log=ClientLog(clock),
            metrics=cast("Any", None),
        )
        self.begin()

    def begin(self) -> None:
        """Everything is made: lead what there is."""
        self.partitions.attach(self.controller.image)
        self.controller.subscribe(self.partitions.apply)

    def register(self, *brokers: BrokerImage) -> None:
        for broker in brokers:
            self.controller.register(broker)

    def create(self, name: str, partitions: int = 1, **options: Any) -> None:
        """A topic of this broker, made at the controller."""
        topic = NewTopic(name=name, partition_count=partitions, replication_factor=1, **options)
        if "assignments" in options:
            topic = NewTopic(name=name, **options)
        outcome = virtual_loop.run(lambda: self.controller.create_topics([topic]))
        assert outcome[0] == self.controller.image.topics[name]

    @property
    def topics(self) -> dict[str, int]:
        """Partition counts by name."""
        return {name: len(one.partitions) for name, one in self.controller.image.topics.items()}

    @property
    def logs_there(self) -> list[TopicPartition]:
        return sorted(log.partition for log in self.logs)

    @property
    def metadata_files(self) -> list[str]:
        return self.disk.list_directory(METADATA)

    def send(
        self, handler: ModuleType, request: Any, response: type[R], version: int, **options: Any
    ) -> R:
        """The handler's answer, after both went over the wire."""

        async def serve() -> R:
            return await self.serve(handler, request, response, version, **options)

        return virtual_loop.run(serve)

    async def serve(
        self,
        handler: ModuleType,
        request: Any,
        response: type[R],
        version: int,
        *,
        listener: str = INSIDE,
    ) -> R:
        facts = RequestFacts(
            api_key=request.API_KEY,
            version=version,
            correlation_id=7,
            client_id="test",
            number=0,
            received_us=0,
            bytes_in=0,
        )
        assert version in versions_of(handler)
        context = Context(self.services, cast("Any", _Peer(listener, self.proven_broker)), facts)
        received = type(request).decode(memoryview(request.encode(version)), version)
        answer = handler.handle(context, received)
        if inspect.isgenerator(answer):
            answer = run_blocking(cast("Any", answer))
        elif inspect.isawaitable(answer):
            answer = await answer
        decoded = cast("Any", response).decode(memoryview(answer.encode(version)), version)
        return cast("R", decoded)


class LateBackground:
    """Does the work at once and tells it later, in virtual time."""

    def submit(self, work: Any, on_done: Any, *, name: str) -> None:
        del name
        outcome = Outcome(work())
        asyncio.get_running_loop().call_later(0.01, on_done, outcome)

    async def close(self, *, timeout_s: float) -> list[str]:
        del timeout_s
        return []


def make_late(desk: Desk) -> None:
    """From now on a change of topics takes its time, so that others come in between."""
    desk.controller._changes._scheduler.background = LateBackground()


def codes(items: list[Any]) -> list[str]:
    """The names of the items' errors."""
    return [ErrorCode(item.error_code).name for item in items]
