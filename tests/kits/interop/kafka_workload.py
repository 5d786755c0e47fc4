"""What a real Kafka is given to store: every kind of record, batch and topic that matters.

Each topic has one partition. Names say what is special about it.
"""

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SEED: Final = 20_260_417
START_MS: Final = 1_700_000_000_000
DELETED_UP_TO: Final = 350
TIMEOUT_S: Final = 30.0
CODECS: Final = ("gzip", "snappy", "lz4", "zstd")

_SMALL_SEGMENTS: Final = {"internal.segment.bytes": "16384"}
_COMPACTED: Final = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "1",
}
COMPACTED_TOPICS: Final = ("compacted", "compacted-expired", "compacted-transactions")
TOPICS: Final[dict[str, dict[str, str]]] = {
    "empty": {},
    "plain": {},
    "shapes": {},
    "append-time": {"message.timestamp.type": "LogAppendTime"},
    "rolled": _SMALL_SEGMENTS,
    "dense-index": {"index.interval.bytes": "200"},
    "big-batches": {"segment.index.bytes": "10485760"},
    "idempotent": {},
    "transactions": {},
    "transactions-rolled": {"internal.segment.bytes": "4096"},
    "open-transaction": {},
    "deleted": {**_SMALL_SEGMENTS, "file.delete.delay.ms": "1"},
    "compacted": {**_COMPACTED, "delete.retention.ms": "86400000"},
    "compacted-expired": {**_COMPACTED, "delete.retention.ms": "1"},
    "compacted-transactions": {**_COMPACTED, "delete.retention.ms": "86400000"},
    **{codec: {} for codec in CODECS},
    **{f"broker-{codec}": {"compression.type": codec} for codec in CODECS},
}

Header = tuple[str, bytes | None]


@dataclass
class Workload:
    """Writes the topics of `TOPICS` through real clients; the same records for the same seed."""

    bootstrap_servers: str
    phase: int = 1
    _random: random.Random = field(init=False)
    _open: list[Producer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(SEED + self.phase)

    def create_topics(self, admin: AdminClient) -> None:
        """Create every topic of `TOPICS`."""
        wanted = [NewTopic(name, 1, 1, config=config) for name, config in TOPICS.items()]
        for future in admin.create_topics(wanted).values():
            future.result(TIMEOUT_S)

    def write_everything(self) -> None:
        """The first phase, on an empty cluster."""
        self.write_plain("plain", 300)
        self.write_shapes()
        self.write_plain("append-time", 100)
        self.write_plain("rolled", 600)
        self.write_plain("dense-index", 300)
        self.write_plain("deleted", 700)
        self.write_big_batches()
        for codec in CODECS:
            self.write_plain(codec, 300, settings={"compression.type": codec})
            self.write_plain(f"broker-{codec}", 300, value_bytes_max=2_000)
        self.write_idempotent()
        self.write_transactions("transactions", rounds=6)
        self.write_transactions("transactions-rolled", rounds=30)
        self.write_open_transaction()
        for topic in ("compacted", "compacted-expired"):
            self.write_keyed(topic, 900)
        self.write_transactions("compacted-transactions", rounds=30)

    def write_more(self) -> None:
        """A later phase: the same log goes on, under another leader epoch."""
        for topic in ("plain", "rolled", "deleted", "lz4", "append-time", "dense-index"):
            self.write_plain(topic, 50)
        self.write_idempotent()
        self.write_transactions("transactions", rounds=3)
        self.write_transactions("transactions-rolled", rounds=5)
        self.write_transactions("open-transaction", rounds=1)

    def write_plain(
        self,
        topic: str,
        count: int,
        *,
        value_bytes_max: int = 200,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Keyed and keyless records in many batches; timestamps go back and forth."""
        producer = self._producer({"enable.idempotence": False, **(settings or {})})
        for number in range(count):
            producer.produce(
                topic,
                key=None if number % 3 == 0 else f"key-{number % 17}",
                value=self._text(f"{topic}-{self.phase}-{number}-", value_bytes_max),
                timestamp=self._timestamp(number),
            )
            if number % self._random.randint(1, 40) == 0:
                producer.flush(TIMEOUT_S)
        self._finish(producer)

    def write_shapes(self) -> None:
        """Nulls, empties, headers of all sorts, bytes that are no text."""
        headers: list[Sequence[Header]] = [
            [],
            [("one", b"1")],
            [("null", None), ("empty", b""), ("", b"nameless")],
            [("same", b"a"), ("same", b"b"), ("überschrift", "größe".encode())],
            [(f"h{n}", bytes([n])) for n in range(100)],
        ]
        contents = [None, b"", b"x", bytes(range(256)), "grün\nzwei Zeilen".encode(), b"y" * 20_000]
        producer = self._producer({"batch.num.messages": 7})
        for number, (key, value, header) in enumerate(
            (key, value, header) for key in contents for value in contents for header in headers
        ):
            producer.produce(
                "shapes", key=key, value=value, headers=list(header), timestamp=START_MS + number
            )
        self._finish(producer)

    def write_big_batches(self) -> None:
        """Batches far beyond the index interval, and single records of some hundred KB."""
        producer = self._producer({"batch.size": 900_000, "linger.ms": 50})
        for number in range(400):
            producer.produce("big-batches", value=self._text(f"{number}-", 2_000))
        producer.flush(TIMEOUT_S)
        for number in range(3):
            producer.produce("big-batches", value=str(number).encode() * 300_000)
            producer.flush(TIMEOUT_S)
        self._finish(producer)

    def write_idempotent(self) -> None:
        """Three producers with ids and sequences, their batches interleaved."""
        producers = [self._producer({"enable.idempotence": True}) for _ in range(3)]
        for number in range(120):
            producer = producers[self._random.randrange(3)]
            producer.produce(
                "idempotent", value=f"{self.phase}-{number}", timestamp=self._timestamp(number)
            )
            if number % 4 == 0:
                producer.flush(TIMEOUT_S)
        for producer in producers:
            self._finish(producer)

    def write_transactions(self, topic: str, *, rounds: int) -> None:
        """Three transactional producers at the same time; each ends either way, in any order."""
        names = [f"{topic}-{n}" for n in range(3)]
        with ThreadPoolExecutor() as pool:  # each waits half a second for its coordinator
            producers = list(pool.map(self._transactional, names))
        for number in range(rounds):
            for producer in producers:
                producer.begin_transaction()
            for step in range(4):
                for who in self._random.sample(range(3), 3):
                    key = f"key-{self._random.randrange(8)}"
                    value = f"{self.phase}-{number}-{step}-{who}"
                    producers[who].produce(
                        topic, key=key, value=value, timestamp=self._timestamp(number)
                    )
                    producers[who].flush(TIMEOUT_S)
            for who in self._random.sample(range(3), 3):
                end: Callable[[float], None] = producers[who].commit_transaction
                if (number + who) % 3 == 0:
                    end = producers[who].abort_transaction
                end(TIMEOUT_S)

    def write_open_transaction(self) -> None:
        """One committed, one aborted, then one that never ends, with plain records around."""
        producer = self._transactional("open-transaction")
        for end in (producer.commit_transaction, producer.abort_transaction, None):
            producer.begin_transaction()
            for number in range(10):
                producer.produce("open-transaction", value=f"{end is None}-{number}")
            producer.flush(TIMEOUT_S)
            if end is not None:
                end(TIMEOUT_S)
        self._open.append(producer)  # collected, it would tell Kafka to forget the transaction
        self.write_plain("open-transaction", 20)

    def write_keyed(self, topic: str, count: int) -> None:
        """Few keys, many versions, some of them removed again."""
        producer = self._producer({"batch.num.messages": 10})
        for number in range(count):
            is_tombstone = self._random.random() < 0.1
            producer.produce(
                topic,
                key=f"key-{self._random.randrange(40)}",
                value=None if is_tombstone else f"{number}-" + "v" * (number % 60),
                timestamp=START_MS + number,
            )
            if number % 25 == 0:
                producer.flush(TIMEOUT_S)
        self._finish(producer)

    def delete_records(self, admin: AdminClient) -> None:
        """Raise the start of the log into the middle of a segment."""
        partition = TopicPartition("deleted", 0, DELETED_UP_TO)
        for future in admin.delete_records([partition]).values():
            future.result(TIMEOUT_S)

    def _producer(self, settings: dict[str, Any]) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "linger.ms": 2,
                "log_level": 0,
                **settings,
            }
        )

    def _transactional(self, name: str) -> Producer:
        # The longest time-out the broker takes: the open transaction must outlive the fixture.
        producer = self._producer({"transactional.id": name, "transaction.timeout.ms": 900_000})
        producer.init_transactions(TIMEOUT_S)
        return producer

    def _finish(self, producer: Producer) -> None:
        if producer.flush(TIMEOUT_S) != 0:
            raise TimeoutError("Kafka did not take all records")

    def _timestamp(self, number: int) -> int:
        return START_MS + self.phase * 1_000_000 + number * 10 + self._random.randrange(-500, 500)

    def _text(self, prefix: str, bytes_max: int) -> bytes:
        letters = self._random.choices("abcdefgh ", k=self._random.randrange(bytes_max))
        return (prefix + "".join(letters)).encode()
