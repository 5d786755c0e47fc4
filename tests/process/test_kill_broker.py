"""I-01, I-20: a broker that is killed while it is written to. Everything acknowledged is there
after the restarts, once, and in order; the producer is librdkafka, which tries again by itself.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer

from kits.broker.produce_codes_kit import batch
from kits.process.broker_process import BrokerProcess, broker_process
from kits.process.lossy_proxy import LossyProxy
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient
from millstream.testing.peers.kafka import free_ports
from millstream.testing.record_batches import PlainRecord, read_records
from millstream.wire.messages.fetch import FetchResponse

TOPIC = "killed"
PARTITIONS = 3
KILLS = 3
RECORDS_BETWEEN_KILLS = 1500
SETTINGS = {
    "log.level": "WARN",
    "log.segment.bytes": "1048576",
    "log.flush.offset.checkpoint.interval.ms": "50",
}


class Life:
    """One data directory and one port, and the broker that is there at the moment."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self._port,) = free_ports(1)
        self._stack = ExitStack()
        self.proxy = self._stack.enter_context(LossyProxy(("127.0.0.1", self._port)))
        self.broker: BrokerProcess = self._start()

    def _start(self) -> BrokerProcess:
        settings = {**SETTINGS, "advertised.listeners": f"PLAINTEXT://{self.proxy.address}"}
        running = broker_process(self._directory, settings, port=self._port)
        return self._stack.enter_context(running)

    def kill_and_restart(self) -> None:
        self.broker.kill()
        self.broker = self._start()

    def kill_after_swallowing_answers(self, writer: "Writer") -> None:
        """Records are written whose acknowledgements are lost."""
        self.proxy.drops_answers = True
        looks = 0

        def is_ahead() -> bool:
            """For a while: what was on its way to the producer has arrived by then."""
            nonlocal looks
            told = writer.told
            written = sum(log_end(self.broker.bootstrap_servers, one) for one in range(PARTITIONS))
            looks = looks + 1 if written > told == writer.told else 0
            return looks >= 5

        until(is_ahead, "more is written than acknowledged")
        self.broker.kill()
        self.proxy.drops_answers = False
        self.broker = self._start()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    made = Life(tmp_path)
    try:
        yield made
    finally:
        made.close()


class Writer:
    """Writes numbered values to all partitions from a thread of its own, until it is told."""

    def __init__(self, place: str, options: Mapping[str, Any]) -> None:
        self.acknowledged: dict[int, list[tuple[int, int]]] = {one: [] for one in range(PARTITIONS)}
        """By partition: (offset, number) of every record, as it was told."""
        self.failures: list[KafkaError] = []
        self.written = 0
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": place,
                "enable.idempotence": True,
                "linger.ms": 1,
                "batch.num.messages": 50,
                "message.timeout.ms": 60_000,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 0,
                **options,
            }
        )
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    @property
    def told(self) -> int:
        return sum(len(found) for found in self.acknowledged.values())

    def wait_for_more(self) -> None:
        enough = self.told + RECORDS_BETWEEN_KILLS
        until(lambda: self.told >= enough, "records are acknowledged")

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        number = int((message.value() or b"").split()[0])
        self.acknowledged[partition].append((offset, number))

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                value = b"%d %s" % (self.written, b"x" * (self.written % 200))
                self._producer.produce(
                    TOPIC,
                    value=value,
                    key=b"k",
                    partition=self.written % PARTITIONS,
                    on_delivery=self._delivered,
                )
                self.written += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            if self.written - self.told > 2000:  # enough is on its way
                self._producer.poll(0.01)

    def stop(self) -> None:
        """Everything is answered, one way or the other."""
        self._is_over.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        assert self._producer.flush(60) == 0


@contextmanager
def writing(life: Life, options: Mapping[str, Any]) -> Iterator[Writer]:
    writer = Writer(life.proxy.address, options)
    try:
        yield writer
    finally:
        writer.stop()


def log_end(place: str, partition: int) -> int:
    with WireClient(place) as client:
        part = client.fetch(TOPIC, 0, partition=partition).responses[0].partitions[0]
        return int(part.high_watermark)


def read_all(place: str, partition: int) -> list[PlainRecord]:
    found: list[PlainRecord] = []
    with WireClient(place) as client:
        while True:
            at = found[-1].offset + 1 if found else 0
            answer: FetchResponse = client.fetch(TOPIC, at, partition=partition)
            part = answer.responses[0].partitions[0]
            assert part.error_code == 0
            more = [one for one in read_records(part.records or b"") if one.offset >= at]
            if not more:
                assert part.high_watermark == at
                return found
            found += more


def check(place: str, writer: Writer) -> None:
    """Each acknowledged record once, at the offset that was told, in the order of writing."""
    for partition, told in writer.acknowledged.items():
        records = read_all(place, partition)
        offsets = [record.offset for record in records]
        assert offsets == list(range(len(records)))
        numbers = [int((record.value or b"").split()[0]) for record in records]
        assert all(first < second for first, second in pairwise(numbers)), "twice or out of order"
        lost = [(offset, number) for offset, number in told if numbers[offset] != number]
        assert not lost
        assert len(told) == len(set(told))
        # There is no other writer, and everything was answered: nothing else is in the log.
        assert sorted(number for _, number in told) == numbers


def options_for(codec: str, in_flight: int = 5) -> dict[str, Any]:
    return {"compression.type": codec, "max.in.flight.requests.per.connection": in_flight}


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "in_flight"), [("none", 5), ("none", 1), ("lz4", 5)])
def test_acknowledged_records_survive_kills_once_and_in_order(
    life: Life, codec: str, in_flight: int
) -> None:
    with life.broker.client() as client:
        client.create_topic(TOPIC, PARTITIONS)
    with writing(life, options_for(codec, in_flight)) as writer:
        for _ in range(KILLS):
            writer.wait_for_more()
            life.kill_and_restart()
        writer.wait_for_more()
    assert not writer.failures
    check(life.broker.bootstrap_servers, writer)
    life.kill_and_restart()
    check(life.broker.bootstrap_servers, writer)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_what_was_written_and_not_acknowledged_is_not_written_again(life: Life, codec: str) -> None:
    """I-20: the producer sends it once more, and a broker that forgot it would take it."""
    with life.broker.client() as client:
        client.create_topic(TOPIC, PARTITIONS)
    with writing(life, options_for(codec)) as writer:
        for _ in range(KILLS):
            writer.wait_for_more()
            life.kill_after_swallowing_answers(writer)
        writer.wait_for_more()
    assert not writer.failures
    check(life.broker.bootstrap_servers, writer)


@pytest.mark.parametrize("configs", [{}, {"flush_messages": "1"}], ids=["staged", "python"])
def test_a_retry_after_a_kill_is_told_the_first_offset(life: Life, configs: dict[str, str]) -> None:
    """The last five batches of a producer, as Kafka keeps them."""
    batches = [bytes(batch(producer=(7000, 0, sequence))) for sequence in range(8)]

    def offsets(chosen: list[bytes]) -> list[tuple[int, int]]:
        with life.broker.client() as client:
            answers = [client.produce(TOPIC, one).responses[0] for one in chosen]
        parts = [answer.partition_responses[0] for answer in answers]
        return [(part.error_code, part.base_offset) for part in parts]

    with life.broker.client() as client:
        client.create_topic(TOPIC, 1, **configs)
    first = offsets(batches[:7])
    assert first == [(0, number) for number in range(7)]
    life.kill_and_restart()
    assert offsets(batches[2:7]) == first[2:]
    assert offsets([batches[7], batches[7]]) == [(0, 7), (0, 7)]
