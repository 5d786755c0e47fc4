"""Answers that become ready outside an event-loop iteration are sent at once.

Clients send nothing after the request in question: an answer that waits for the next event of a
socket would wait forever. A real broker on real sockets, on each kind of loop it may get.
"""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from kits.process.wire_client import WireClient, produce_request
from millstream.broker.broker import Broker, BrokerDependencies
from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.replication.partition import Partition
from millstream.runtime.background import Outcome, ThreadBackground
from millstream.runtime.loop import DirectLoop
from millstream.storage.config import FOREVER
from millstream.testing.record_batches import build_batch
from millstream.wire.errors import ErrorCode

T = TypeVar("T")
ANSWER_TIMEOUT_S = 20.0
TOPIC = "late"


class HeldBackground(ThreadBackground):
    """Syncs wait until the test lets them go on."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._held: list[Callable[[], None]] | None = []

    def submit(
        self, work: Callable[[], T], on_done: Callable[[Outcome[T]], None], *, name: str
    ) -> None:
        if name == "flush" and self._held is not None:
            self._held.append(lambda: super(HeldBackground, self).submit(work, on_done, name=name))
        else:
            super().submit(work, on_done, name=name)

    @property
    def held_count(self) -> int:
        return len(self._held or ())

    def release(self) -> None:
        held, self._held = self._held or [], None
        for one in held:
            one()


class Scene:
    """A broker, and clients whose calls run in threads: the loop is the broker's."""

    def __init__(self, broker: Broker, background: HeldBackground) -> None:
        self.broker = broker
        self.background = background
        self.clients: list[WireClient] = []

    @property
    def partition(self) -> Partition:
        return self.broker.partitions.get((TOPIC, 0))

    async def client(self) -> WireClient:
        end = self.broker.endpoints[0]
        client = await asyncio.to_thread(WireClient, f"{end.host}:{end.port}")
        self.clients.append(client)
        return client

    async def until(self, condition: Callable[[], bool]) -> None:
        """Other handles of the loop go on meanwhile; no socket of the broker's wakes."""
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - no event reports a broker's inner state
                await asyncio.sleep(0.001)

    async def staged_behind_a_flush(self, *, timeout_ms: int) -> asyncio.Task[Any]:
        """A produce request that the connection core answers, waiting for another one's flush."""
        first = await self.client()
        await asyncio.to_thread(first.create_topic, TOPIC, flush_messages="1")
        first.write(produce_request(TOPIC, a_batch()), 9)
        await self.until(lambda: self.background.held_count == 1)
        log = self.partition.log
        log.config = dataclasses.replace(log.config, flush_messages=FOREVER)
        first.write(produce_request(TOPIC, a_batch()), 9)  # the slow path: it sets the limits
        await self.until(lambda: log.log_end == 2)
        second = await self.client()
        request = produce_request(TOPIC, a_batch())
        request.timeout_ms = timeout_ms
        answer = asyncio.create_task(asyncio.to_thread(second.send, request, 9))
        await self.until(lambda: self.partition.slot.waiting == 1)
        return answer


def a_batch() -> bytes:
    return bytes(build_batch([(None, b"value")]))


@asynccontextmanager
async def scene(directory: Path) -> AsyncIterator[Scene]:
    background = HeldBackground(asyncio.get_running_loop())
    settings = {"broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0"}
    configs = BrokerConfigs({**settings, "log.dirs": str(directory)})
    broker = Broker(configs, BrokerDependencies(background=background))
    await broker.start()
    found = Scene(broker, background)
    try:
        yield found
    finally:
        for client in found.clients:
            client.socket.close()
        background.release()
        await broker.stop()


LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "direct": DirectLoop,
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


@pytest.fixture(params=LOOPS)
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as found:
        yield found


def test_a_flush_that_ends_releases_the_answers_that_waited_for_it(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    async def story() -> None:
        async with scene(tmp_path) as found:
            answer = await found.staged_behind_a_flush(timeout_ms=60_000)
            found.background.release()
            response = await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
            part = response.responses[0].partition_responses[0]
            assert (part.error_code, part.base_offset) == (0, 2)

    runner.run(story())


def test_a_produce_request_whose_time_is_up_is_told_so(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    async def story() -> None:
        async with scene(tmp_path) as found:
            answer = await found.staged_behind_a_flush(timeout_ms=1)
            response = await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
            code = response.responses[0].partition_responses[0].error_code
            assert code == ErrorCode.REQUEST_TIMED_OUT
            assert found.partition.slot.waiting == 0

    runner.run(story())


def test_a_fetch_whose_time_is_up_is_answered(runner: asyncio.Runner, tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as found:
            client = await found.client()
            await asyncio.to_thread(client.create_topic, TOPIC)
            pending = asyncio.to_thread(client.fetch, TOPIC, 0, max_wait_ms=30)
            response = await asyncio.wait_for(pending, ANSWER_TIMEOUT_S)
            assert response.responses[0].partitions[0].error_code == 0

    runner.run(story())


def test_a_flush_that_ends_lets_waiting_readers_see_the_records(
    runner: asyncio.Runner, tmp_path: Path
) -> None:
    async def story() -> None:
        async with scene(tmp_path) as found:
            writer, reader = await found.client(), await found.client()
            await asyncio.to_thread(writer.create_topic, TOPIC, flush_messages="1")
            pending = asyncio.create_task(
                asyncio.to_thread(reader.fetch, TOPIC, 0, max_wait_ms=60_000)
            )
            await found.until(lambda: bool(found.partition.readers))
            writer.write(produce_request(TOPIC, a_batch()), 9)
            await found.until(lambda: found.background.held_count == 1)
            assert found.partition.readers  # what is not durable is not shown
            found.background.release()
            response = await asyncio.wait_for(pending, ANSWER_TIMEOUT_S)
            assert response.responses[0].partitions[0].high_watermark == 1

    runner.run(story())
