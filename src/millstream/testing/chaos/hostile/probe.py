"""Another client, which only wants to produce: how long each of its records takes.

    python -m millstream.testing.chaos.hostile.probe JSON

To each partition of a topic one record at a time with acks=all, due at a steady rate, some of them
large; partitions do not wait for each other, as with any producer. A time counts from the moment a
record was *due*: while a broker stalls, those that should have been sent meanwhile are late too,
and are not left out of the percentiles. A record is sent again until it is acknowledged. One line
of JSON for each to `history`; runs until its standard input ends.
"""

import json
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
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
"""To all partitions together."""
ATTEMPT_S: Final = 10.0
"""For one answer: longer than any stall that should be measured as one."""
PAUSE_S: Final = 0.02
RECORD_BYTES: Final = 100
LARGE_RECORD_BYTES: Final = 300_000
LARGE_EVERY: Final = 25
"""Records: more than one in a hundred, so that what only large requests meet is in the 99th
percentile."""
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
    """The records of one partition, with a connection per broker."""

    def __init__(self, task: ProbeTask, partition: int, lines: HistoryWriter) -> None:
        self._task = task
        self._partition = partition
        self._lines = lines
        self._leaders: dict[int, str] = {}
        self._connections: dict[str, Connection] = {}
        self._records = partition * LARGE_EVERY // task.partitions
        """Its partition's large records are not due at the same time as those of others."""

    def run(self, is_over: threading.Event) -> None:
        due_s = time.monotonic() + self._partition / PER_S
        while not is_over.wait(max(0.0, due_s - time.monotonic())):
            self._records += 1
            failures = self._produce(is_over)
            took_s = time.monotonic() - due_s
            figures = {"p": self._partition, "at": due_s, "s": round(took_s, 6)}
            self._lines.write("probe", **figures, failures=failures)
            due_s += self._task.partitions / PER_S

    def _produce(self, is_over: threading.Event) -> int:
        """Until it is acknowledged; the number of attempts that failed."""
        failures = 0
        while not is_over.is_set():
            try:
                code = self._attempt()
            except OSError:
                self._forget()
                code = None
            if code is ErrorCode.NONE:
                break
            failures += 1
            self._leaders.clear()
            time.sleep(PAUSE_S)
        return failures

    def _attempt(self) -> ErrorCode:
        partition = self._partition
        if partition not in self._leaders:
            self._find_leaders()
        address = self._leaders.get(partition)
        if address is None:
            return ErrorCode.LEADER_NOT_AVAILABLE
        spec = BatchSpec(timestamp_ms=int(time.time() * 1000))
        size_bytes = RECORD_BYTES if self._records % LARGE_EVERY else LARGE_RECORD_BYTES
        batch = bytes(build_batch([(None, bytes(size_bytes))], spec))
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
    with ThreadPoolExecutor(task.partitions) as lanes:
        probes = [Probe(task, partition, lines) for partition in range(task.partitions)]
        running = [lanes.submit(one.run, is_over) for one in probes]
        wait(running, return_when=FIRST_EXCEPTION)
        is_over.set()
    lines.close()
    for one in running:
        one.result()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
