"""The data plane of a broker without sockets: real logs, real handlers, a peer that notes answers.

Requests go in as bytes and answers come out as messages, both through the generic codec, so that
the handlers' own encoders are always read by another decoder.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any
from uuid import UUID

from kits.storage.log_stories import batch_of
from millstream.broker.fetch.sessions import FetchSessions
from millstream.broker.requests.broker_proof import Challenge
from millstream.broker.requests.context import AnswerPart, RequestFacts
from millstream.broker.requests.dispatch import Dispatch
from millstream.broker.requests.services import Services
from millstream.controller.image import (
    BrokerImage,
    ClusterImage,
    Endpoint,
    ImageChange,
    PartitionImage,
    TopicImage,
)
from millstream.kernels.slots import SlotTable
from millstream.model.ids import BrokerId, LeaderEpoch, TopicId
from millstream.model.invariant import InvariantViolated
from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.client_log import ClientLog
from millstream.replication.partition import Partition
from millstream.replication.partitions import Partitions
from millstream.runtime.background import Background, Outcome
from millstream.runtime.os_disk import OsDisk
from millstream.runtime.randomness import SeededRandomness
from millstream.storage.config import LogConfig
from millstream.storage.log.reader import ReadSlice
from millstream.storage.manager.log_manager import LogManager, StorageDependencies
from millstream.storage.ports import LeadershipListener
from millstream.testing.log_kit import SMALL_SEGMENTS
from millstream.testing.record_batches import PlainRecord, read_records
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock
from millstream.testing.sim.disk import SimDisk
from millstream.wire.headers import decode_response_header
from millstream.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

ROOT = "/data"
BROKER = BrokerId(1)
LISTENER = "PLAINTEXT"


class HeldBackground:
    """Work that is done when the test says so."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Outcome[Any]], None]]] = deque()

    def submit(
        self, work: Callable[[], Any], on_done: Callable[[Outcome[Any]], None], *, name: str
    ) -> None:
        del name
        self._jobs.append((work, on_done))

    def run(self) -> int:
        """Do everything that waits, and what follows from it; how many jobs that was."""
        count = 0
        while self._jobs:
            work, on_done = self._jobs.popleft()
            InlineBackground().submit(work, on_done, name="")
            count += 1
        return count

    async def close(self, *, timeout_s: float) -> list[str]:
        del timeout_s
        return []


class _Handle:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualTimers:
    """Timers that fire when the clock is moved with `pass_time`."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._due: list[tuple[float, int, _Handle, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> _Handle:
        self._number += 1
        handle = _Handle()
        when_s = self._clock.monotonic_s() + delay_s
        heappush(self._due, (when_s, self._number, handle, callback, arguments))
        return handle

    def fire(self) -> None:
        """Everything that is due at this moment."""
        while self._due and self._due[0][0] <= self._clock.monotonic_s() + 1e-9:
            _, _, handle, callback, arguments = heappop(self._due)
            if not handle.is_cancelled:
                callback(*arguments)

    def pass_time(self, by_ms: int) -> None:
        for _ in range(by_ms):
            self._clock.advance(1)
            self.fire()

    @property
    def armed(self) -> int:
        return sum(not entry[2].is_cancelled for entry in self._due)


class Settings:
    """Broker settings that a test may change."""

    def __init__(self, config: LogConfig) -> None:
        self.config = config
        self.numbers = {"fetch.max.bytes": 57_671_680}
        self.min_in_sync = "1"

    def get_int(self, name: str) -> int:
        return self.numbers[name]

    def log_config(self, topic_configs: Mapping[str, str]) -> LogConfig:
        del topic_configs
        return self.config

    def topic_text(self, topic_configs: Mapping[str, str], name: str) -> str:
        del name
        return topic_configs.get("min.insync.replicas", self.min_in_sync)


class Controller:
    """Only the image."""

    def __init__(self) -> None:
        here = Endpoint(LISTENER, "broker.example", 9092)
        broker = BrokerImage(BROKER, (here,), "rack-1")
        self.image = ClusterImage(
            cluster_id="test",
            controller_id=BROKER,
            brokers={BROKER: broker},
            topics={},
            broker_configs={},
        )


@dataclass(slots=True, eq=False)
class NotedPeer:
    """Keeps what was sent, in order; files are unpinned when an answer is taken."""

    listener: str = LISTENER
    client_host: str = "127.0.0.1"
    local_host: str = "127.0.0.1"
    connection_id: int = 1
    is_open: bool = True
    is_admitted: bool = True
    proven_broker: BrokerId | None = None
    challenge: Challenge | None = None
    answers: dict[int, list[AnswerPart]] = field(default_factory=dict)
    nothing: list[int] = field(default_factory=list)
    closed: str = ""
    parked: dict[int, tuple[int, Callable[[], None]]] = field(default_factory=dict)
    """What requests take that wait for records, and what is called if the client is gone."""

    def send_answer(self, number: int, parts: Sequence[AnswerPart]) -> None:
        assert number not in self.answers, "two answers for one request"
        self.answers[number] = list(parts)

    def send_nothing(self, number: int) -> None:
        self.nothing.append(number)

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason
        self.is_open = False

    def prove(self, broker_id: BrokerId) -> None:
        self.proven_broker = broker_id

    def admit(self, api_key: int) -> bool:
        del api_key
        return True

    def charge(self, number: int, *, go_on: Callable[[], None], **_sizes: int) -> None:
        """There is memory for all of it."""
        del number
        go_on()

    def charged_max(self, kept_bytes: int) -> int:
        return kept_bytes * 100

    def park(self, number: int, size_bytes: int, drop: Callable[[], None]) -> None:
        self.parked[number] = size_bytes, drop

    def hold(self, number: int) -> None: ...

    def let_go(self, number: int) -> None: ...

    def mute(self) -> None:
        """Nothing comes from it by itself."""

    def unmute(self) -> None: ...

    def take(self, number: int) -> bytes | None:
        """The answer's frame without its size; None while there is none."""
        parts = self.answers.pop(number, None)
        if parts is None:
            return None
        raw = bytearray()
        for part in parts:
            if isinstance(part, ReadSlice):
                raw += part.read()
                assert part.file is not None
                part.file.unpin()
            else:
                raw += part
        assert int.from_bytes(raw[:4], "big") == len(raw) - 4
        return bytes(raw[4:])


def topic_image(
    name: str,
    *,
    partitions: int = 1,
    number: int = 7,
    epoch: int = 0,
    configs: Mapping[str, str] | None = None,
) -> TopicImage:
    return TopicImage(
        name,
        TopicId(UUID(int=number)),
        tuple(
            PartitionImage(index, (BROKER,), (BROKER,), BROKER, LeaderEpoch(epoch), 0)
            for index in range(partitions)
        ),
        configs or {},
    )


class Iterations:
    """The network's, which the test says are going on or not."""

    def __init__(self) -> None:
        self.is_going_on = False

    def is_awake(self) -> bool:
        return self.is_going_on

    def flush_ready(self) -> None: ...


class DataPlane:
    """A broker's produce and fetch, on a simulated disk, or in a directory of the real one."""

    def __init__(
        self,
        config: LogConfig = SMALL_SEGMENTS,
        *,
        background: Background | None = None,
        slots_max: int = 1000,
        capacity_bytes: int | None = None,
        directory: Path | None = None,
        listeners: Mapping[str, LeadershipListener] | None = None,
    ) -> None:
        self.iterations = Iterations()
        self._listeners = listeners
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.disk = SimDisk(11, directories=[ROOT], capacity_bytes=capacity_bytes)
        self._directory = directory
        self.background = background or InlineBackground()
        self.settings = Settings(config)
        self.controller = Controller()
        self.table = SlotTable(violation=InvariantViolated)
        self.peer = NotedPeer()
        self._slots_max = slots_max
        self._number = 0
        self.start()

    def start(self) -> None:
        disk, root = self.disk if self._directory is None else OsDisk(), self._directory or ROOT
        dependencies = StorageDependencies(disk, self.clock, SeededRandomness(5), self.background)
        self.logs = LogManager(dependencies, [str(root)])
        self.logs.start(lambda _partition, _topic_id: self.settings.config)
        self.partitions = Partitions(
            self.logs,
            self.settings,
            self.table,
            listeners=self._listeners,
            iterations=self.iterations,
        )
        self.sessions = FetchSessions(
            slots_max=self._slots_max, clock=self.clock, randomness=SeededRandomness(9)
        )
        self.dispatch = Dispatch(lambda: self.services, lambda work, _: work.close())
        self.services = Services(
            broker_id=BROKER,
            clock=self.clock,
            randomness=SeededRandomness(1),
            timers=self.timers,
            responder=self.dispatch,
            configs=self.settings,  # type: ignore[arg-type] # the part that is used
            controller=self.controller,  # type: ignore[arg-type]
            logs=self.logs,
            partitions=self.partitions,
            fetch_sessions=self.sessions,
            producer_ids=None,  # type: ignore[arg-type]
            client_log=ClientLog(self.clock),
            metrics=BrokerMetrics(),
        )
        self.partitions.attach(self.controller.image)

    # -- topics

    def apply(self, change: ImageChange) -> None:
        controller = self.controller
        put = [*change.created, *(grown.topic for grown in change.grown), *change.reconfigured]
        controller.image = controller.image.changed(put=put, drop=change.deleted)
        self.partitions.apply(change)

    def create(self, name: str, partitions: int = 1, **facts: Any) -> TopicImage:
        topic = topic_image(name, partitions=partitions, **facts)
        self.apply(ImageChange(created=[topic]))
        return topic

    def delete(self, name: str) -> None:
        self.apply(ImageChange(deleted=[self.controller.image.topics[name]]))

    def leader(self, name: str, index: int = 0) -> Partition:
        return self.partitions.get((name, index))

    def fill(self, name: str, *values: bytes, index: int = 0) -> None:
        """One batch each, past the handlers."""
        failures: list[Any] = []
        for value in values:
            self.leader(name, index).append(
                batch_of(value), acks=1, done=lambda outcome: failures.append(outcome.error)
            )
        assert not any(failures), failures

    # -- requests

    def send(self, request: Any, version: int, *, client_id: str | None = "test") -> int:
        """Hand in a request; returns its number."""
        self._number += 1
        body = bytearray(request.encode(version))
        facts = RequestFacts(
            int(type(request).API_KEY), version, 77, client_id, self._number, 0, len(body)
        )
        self.dispatch.handle(self.peer, facts, memoryview(body))
        return self._number

    def answer(self, number: int, kind: type[Any], version: int) -> Any:
        """The decoded answer; None while there is none."""
        raw = self.peer.take(number)
        if raw is None:
            return None
        view = memoryview(raw)
        header, position = decode_response_header(view, kind.API_KEY, version)
        del header
        return kind.decode(view[position:], version)

    # -- produce

    def produce(
        self,
        topic: str,
        records: bytes | bytearray | None,
        *,
        index: int = 0,
        acks: int = -1,
        version: int = 12,
        **more: Any,
    ) -> PartitionProduceResponse:
        """One partition; the answer must be there at once."""
        number = self.send_produce(topic, records, index=index, acks=acks, version=version, **more)
        response = self.answer(number, ProduceResponse, version)
        assert response is not None, "no answer"
        found = response.responses[0].partition_responses[0]
        assert isinstance(found, PartitionProduceResponse)
        return found

    def send_produce(
        self,
        topic: str,
        records: bytes | bytearray | None,
        *,
        index: int = 0,
        acks: int = -1,
        version: int = 12,
        timeout_ms: int = 1000,
        transactional_id: str | None = None,
        client_id: str | None = "test",
    ) -> int:
        image = self.controller.image.topics.get(topic)
        data = TopicProduceData(
            name=topic,
            topic_id=image.topic_id if image is not None else UUID(int=999),
            partition_data=[PartitionProduceData(index=index, records=records)],
        )
        request = ProduceRequest(
            acks=acks, timeout_ms=timeout_ms, topic_data=[data], transactional_id=transactional_id
        )
        return self.send(request, version, client_id=client_id)

    # -- fetch

    def fetch_request(
        self,
        positions: Sequence[tuple[str, int, int]],
        *,
        version: int = 17,
        partition_max_bytes: int = 1_000_000,
        forgotten: Sequence[tuple[str, int]] = (),
        partition: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> FetchRequest:
        """For (topic, partition, offset); topics that do not exist get an unknown id."""
        topics = self.controller.image.topics

        def id_of(name: str) -> UUID:
            return topics[name].topic_id if name in topics else UUID(int=404)

        request = FetchRequest(
            max_wait_ms=fields.pop("max_wait_ms", 0), min_bytes=fields.pop("min_bytes", 1), **fields
        )
        for name, index, offset in positions:
            if not request.topics or request.topics[-1].topic != name:
                request.topics.append(FetchTopic(topic=name, topic_id=id_of(name)))
            request.topics[-1].partitions.append(
                FetchPartition(
                    partition=index,
                    fetch_offset=offset,
                    partition_max_bytes=partition_max_bytes,
                    **(partition or {}),
                )
            )
        for name, index in forgotten:
            request.forgotten_topics_data.append(
                ForgottenTopic(topic=name, topic_id=id_of(name), partitions=[index])
            )
        return request

    def fetch(
        self, positions: Sequence[tuple[str, int, int]], *, version: int = 17, **fields: Any
    ) -> "Fetched":
        """The answer must be there at once."""
        number = self.send(self.fetch_request(positions, version=version, **fields), version)
        return self.fetched(number, version)

    def fetched(self, number: int, version: int = 17) -> "Fetched":
        response = self.answer(number, FetchResponse, version)
        assert response is not None, "no answer"
        return Fetched(self, response)


@dataclass(slots=True)
class Fetched:
    """A Fetch answer, by topic and partition."""

    plane: DataPlane
    response: FetchResponse

    @property
    def error(self) -> int:
        return self.response.error_code

    @property
    def session_id(self) -> int:
        return self.response.session_id

    def _name(self, topic: FetchableTopicResponse) -> str:
        if topic.topic:
            return topic.topic
        found = self.plane.controller.image.topics_by_id.get(TopicId(topic.topic_id))
        return found.name if found is not None else f"id {topic.topic_id.int}"

    @property
    def partitions(self) -> dict[tuple[str, int], PartitionData]:
        return {
            (self._name(topic), one.partition_index): one
            for topic in self.response.responses
            for one in topic.partitions
        }

    @property
    def only(self) -> PartitionData:
        (found,) = self.partitions.values()
        return found

    @property
    def errors(self) -> list[int]:
        return [one.error_code for one in self.partitions.values()]

    def records(self, name: str, index: int = 0) -> list[PlainRecord]:
        found = self.partitions.get((name, index))
        return [] if found is None or found.records is None else read_records(found.records)

    def values(self, name: str, index: int = 0) -> list[bytes | None]:
        return [record.value for record in self.records(name, index)]
