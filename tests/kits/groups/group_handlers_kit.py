"""One broker without sockets that has groups: requests and answers go over the wire's bytes."""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from kits.broker.topic_handlers_kit import INSIDE, Desk, _Peer
from millstream.broker.groups.service import OFFSETS_TOPIC, GroupService, GroupServiceDependencies
from millstream.broker.requests.context import Context, RequestFacts
from millstream.broker.requests.registry import SERVED, load
from millstream.broker.requests.topic_changes import topic_defaults
from millstream.controller.image import ImageChange
from millstream.controller.topics import NewTopic
from millstream.runtime.scheduler import CooperativeScheduler, run_blocking
from millstream.runtime.timers import LoopTimers
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock, SimClock
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import response_type
from millstream.wire.schema import Message

R = TypeVar("R", bound=Message)

SETTINGS: Mapping[str, str] = {
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
}


class _Answering:
    """What `Dispatch` does with an answer that comes later."""

    def __init__(self) -> None:
        self.waiting: dict[int, asyncio.Future[Any]] = {}

    def answer(self, context: Context, response: Any) -> None:
        self.waiting.pop(context.facts.number).set_result(response)

    def answer_parts(self, context: Context, body: Sequence[bytes], *, error_count: int) -> None:
        assert not error_count
        made = response_type(ApiKey(context.facts.api_key))
        self.answer(context, made.decode(b"".join(body), context.version))


class GroupDesk(Desk):
    """Make it on a running loop."""

    def __init__(self, settings: Mapping[str, str] | None = None, **options: Any) -> None:
        loop = asyncio.get_running_loop()
        scheduler = CooperativeScheduler(InlineBackground())
        self._clock = SimClock(loop)
        self._timers = cast("Any", LoopTimers(loop, self._clock))
        self._answering = _Answering()
        self._number = 0
        self.groups = GroupService(
            GroupServiceDependencies(
                services=lambda: self.services,
                clock=self._clock,
                timers=self._timers,
                scheduler=scheduler,
                spawn=scheduler.spawn,
                at_iteration_end=loop.call_soon,
            )
        )
        listeners = {OFFSETS_TOPIC: self.groups}
        super().__init__({**SETTINGS, **(settings or {})}, listeners=listeners, **options)

    def begin(self) -> None:
        services = self.services
        self.log_clock = cast("ManualClock", services.clock)
        """That of the logs, which stands still."""
        services.clock, services.timers, services.groups = self._clock, self._timers, self.groups
        services.responder = cast("Any", self._answering)
        super().begin()
        self.controller.subscribe(self._changed)

    def _changed(self, change: ImageChange) -> None:
        run_blocking(self.groups.metadata_changed_steps(change))

    async def make(self, name: str, partitions: int = 1) -> None:
        """A topic."""
        topic = NewTopic(name=name, partition_count=partitions, replication_factor=1)
        (outcome,) = await self.controller.create_topics(
            [topic], defaults=topic_defaults(self.services)
        )
        assert outcome == self.controller.image.topics[name]

    async def ready(self) -> None:
        """Until the offsets topic is there and loaded."""
        await self.groups.topic()
        coordinator = self.groups.coordinator.shards
        while not coordinator.indexes or coordinator.loading_count:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)

    async def ask(self, request: Any, version: int, *, listener: str = INSIDE) -> Any:
        """The answer to a request of any API."""
        key = ApiKey(request.API_KEY)
        handler = load(key)
        assert version in SERVED[key].versions
        self._number += 1
        facts = RequestFacts(
            api_key=key,
            version=version,
            correlation_id=7,
            client_id="test",
            number=self._number,
            received_us=0,
            bytes_in=0,
        )
        context = Context(self.services, cast("Any", _Peer(listener)), facts)
        sent = handler.decode(memoryview(request.encode(version)), version)
        later: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answering.waiting[self._number] = later
        answer = handler.handle(context, sent)
        if inspect.iscoroutine(answer):
            answer = await answer
        elif hasattr(answer, "send"):
            answer = run_blocking(cast("Any", answer))
        if answer is None:
            answer = await later
        else:
            del self._answering.waiting[facts.number]
        return type(answer).decode(memoryview(answer.encode(version)), version)
