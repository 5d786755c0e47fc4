"""Another client, which only wants to produce: how long each of its records takes.

    python -m millstream.testing.chaos.hostile.probe JSON

One record at a time with acks=all, to the partitions of a topic by turns, due at a steady rate. A
time counts from the moment a record was *due*: while a broker stalls, those that should have been
sent meanwhile are late too, and are not left out of the percentiles. A record is sent again until
it is acknowledged. One line of JSON for each to `history`; runs until its standard input ends.
"""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from millstream.testing.chaos.hostile.attack import Connection
from millstream.testing.history.lines import HistoryWriter
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

PER_S: Final = 60.0
ATTEMPT_S: Final = 10.0
"""For one answer: longer than any stall that should be measured as one."""
PAUSE_S: Final = 0.02
RECORD_BYTES: Final = 100
_PRODUCE_VERSION: Final = 9
_METADATA_VERSION: Final = 9


@dataclass(frozen=True, kw_only=True)
class ProbeTask:
    """The configuration of a probe."""

    bootstrap: tuple[str, ...]
    topic: str
    partitions: int
    history: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Probe:
    """One connection per broker, as a real client has them."""

    def __init__(self, task: ProbeTask, lines: HistoryWriter) -> None:
        self._task = task
        self._lines = lines
        self._leaders: dict[int, str] = {}
        self._connections: dict[str, Connection] = {}

    def run(self, is_over: threading.Event) -> None:
        number, due_s = 0, time.monotonic()
        while not is_over.is_set():
            time.sleep(max(0.0, due_s - time.monotonic()))
            failures = self._produce(number % self._task.partitions, is_over)
            took_s = time.monotonic() - due_s
            self._lines.write("probe", at=due_s, s=round(took_s, 6), failures=failures)
            number += 1
            due_s += 1 / PER_S

    def _produce(self, partition: int, is_over: threading.Event) -> int:
        """Until it is acknowledged; the number of attempts that failed."""
        failures = 0
        while not is_over.is_set():
            try:
                code = self._attempt(partition)
            except OSError:
                self._forget()
                code = None
            if code is ErrorCode.NONE:
                break
            failures += 1
            self._leaders.clear()
            time.sleep(PAUSE_S)
        return failures

    def _attempt(self, partition: int) -> ErrorCode:
        if partition not in self._leaders:
            self._find_leaders()
        address = self._leaders.get(partition)
        if address is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        spec = BatchSpec(timestamp_ms=int(time.time() * 1000))
        batch = bytes(build_batch([(None, bytes(RECORD_BYTES))], spec))
        data = TopicProduceData(
            name=self._task.topic,
            partition_data=[PartitionProduceData(index=partition, records=batch)],
        )
        request = ProduceRequest(acks=-1, timeout_ms=int(ATTEMPT_S * 1000), topic_data=[data])
        answer = self._to(address).call(request, _PRODUCE_VERSION)
        return ErrorCode(answer.responses[0].partition_responses[0].error_code)

    def _find_leaders(self) -> None:
        for address in self._task.bootstrap:
            try:
                topics = [MetadataRequestTopic(name=self._task.topic)]
                request = MetadataRequest(topics=topics)
                answer = self._to(address).call(request, _METADATA_VERSION)
            except OSError:
                self._connections.pop(address, None)
                continue
            brokers = {one.node_id: f"{one.host}:{one.port}" for one in answer.brokers}
            for one in answer.topics[0].partitions:
                if one.leader_id in brokers:
                    self._leaders[one.partition_index] = brokers[one.leader_id]
            if self._leaders:
                return

    def _to(self, address: str) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(address, timeout_s=ATTEMPT_S)
        return self._connections[address]

    def _forget(self) -> None:
        for one in self._connections.values():
            one.socket.close()
        self._connections.clear()
        self._leaders.clear()


def _end_of_input(is_over: threading.Event) -> None:
    sys.stdin.read()
    is_over.set()


def main(arguments: list[str]) -> int:
    task = ProbeTask(**json.loads(arguments[0]))
    lines = HistoryWriter(Path(task.history))
    is_over = threading.Event()
    threading.Thread(target=_end_of_input, args=(is_over,), daemon=True).start()
    try:
        Probe(task, lines).run(is_over)
    finally:
        lines.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
