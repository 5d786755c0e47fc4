"""Topics filled at random, the same way on every broker: what a query over them must agree on."""

import json
import random
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

TIMEOUT_S: Final = 30.0
START_MS: Final = 1_700_000_000_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS_MAX: Final = 120
HEADERS: Final[tuple[Any, ...]] = (
    None,
    None,
    [("one", b"1")],
    [("null", None), ("empty", b""), ("same", b"a"), ("same", b"b")],
    [("ü", bytes(range(256)))],
)
_TYPES: Final = ("CreateTime", "CreateTime", "CreateTime", "LogAppendTime")


@dataclass
class RandomTopics:
    """The plan depends only on the seed; `apply` executes it on any number of brokers."""

    seed: int
    prefix: str
    partitions: dict[str, int] = field(default_factory=dict)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    append_time: set[str] = field(default_factory=set)
    """Topics whose times are the broker's and differ from one to the other."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._number = 0

    def first_round(self, servers: list[str]) -> None:
        """Topics, records in them, some of them deleted again, partitions added."""
        for number in range(self.random.randint(1, 3)):
            self.create(servers, f"{self.prefix}-{number}")
        for _ in range(self.random.randint(3, 6)):
            self.write(servers)
        for _ in range(self.random.randint(0, 2)):
            self.delete_records(servers)
        self.add_partitions(servers)
        self.write(servers)

    def next_round(self, servers: list[str]) -> None:
        """What happens while a query is away."""
        self.write(servers)
        if self.random.random() < 0.5:
            self.add_partitions(servers)
        self.write(servers)

    def create(self, servers: list[str], topic: str) -> None:
        self.partitions[topic] = self.random.randint(1, 4)
        kind = self.random.choice(_TYPES)
        if kind == "LogAppendTime":
            self.append_time.add(topic)
        config = {"message.timestamp.type": kind, "retention.ms": "-1"}
        for one in servers:
            wanted = NewTopic(topic, self.partitions[topic], 1, config=config)
            admin = _admin(one)
            _await(admin.create_topics([wanted]))
        for partition in range(self.partitions[topic]):
            self.starts[topic, partition] = self.ends[topic, partition] = 0

    def write(self, servers: list[str]) -> None:
        """Some records into one partition, in batches of any size, with one codec."""
        topic, partition = self.random.choice(sorted(self.ends))
        settings = {
            "compression.type": self.random.choice(CODECS),
            "batch.num.messages": self.random.choice([1, 7, 1000]),
            "linger.ms": 20,
        }
        records = [self._record() for _ in range(self.random.randint(1, RECORDS_MAX))]
        for one in servers:
            producer = Producer({"bootstrap.servers": one, "log_level": 0, **settings})
            for record in records:
                producer.produce(topic, partition=partition, **record)
            assert producer.flush(TIMEOUT_S) == 0
        self.ends[topic, partition] += len(records)

    def _record(self) -> dict[str, Any]:
        self._number += 1
        contents = (None, b"", self.random.randbytes(self.random.randint(1, 300)))
        record = {
            "key": self.random.choice(contents),
            "value": self.random.choice(contents),
            "timestamp": START_MS + 1000 * self._number + self.random.randint(-3000, 3000),
        }
        headers = self.random.choice(HEADERS)
        return record if headers is None else {**record, "headers": headers}

    def delete_records(self, servers: list[str]) -> None:
        place = self.random.choice(sorted(self.ends))
        self.starts[place] = self.random.randint(self.starts[place], self.ends[place])
        for one in servers:
            wanted = [TopicPartition(*place, self.starts[place])]
            admin = _admin(one)
            _await(admin.delete_records(wanted))

    def add_partitions(self, servers: list[str]) -> None:
        topic = self.random.choice(sorted(self.partitions))
        self.partitions[topic] += 1
        for one in servers:
            wanted = [NewPartitions(topic, self.partitions[topic])]
            admin = _admin(one)
            _await(admin.create_partitions(wanted))
        place = topic, self.partitions[topic] - 1
        self.starts[place] = self.ends[place] = 0

    # -- queries

    def query(self) -> dict[str, str]:
        """Options of a batch query, drawn at random, that every broker can answer."""
        topics = sorted(self.partitions)
        chosen = self.random.sample(topics, self.random.randint(1, len(topics)))
        options = {"includeHeaders": self.random.choice(["true", "false"])}
        match self.random.randrange(3):
            case 0:
                options["subscribe"] = ",".join(chosen)
            case 1:
                chosen = topics
                options["subscribePattern"] = f"{self.prefix}-[0-9]"
            case _:
                options["assign"] = json.dumps(
                    {topic: list(range(self.partitions[topic])) for topic in chosen}
                )
        return options | self._bounds(chosen) | self._cutting()

    def _bounds(self, chosen: list[str]) -> dict[str, str]:
        places = [place for place in sorted(self.ends) if place[0] in chosen]
        match self.random.randrange(4):
            case 0:
                first = {place: self._between(place) for place in places}
                last = {
                    place: self.random.randint(first[place], self.ends[place]) for place in places
                }
                return {"startingOffsets": _json(first), "endingOffsets": _json(last)}
            case 1 if not self.append_time.intersection(chosen):
                begin = self.random.randint(0, self._number)
                return {
                    "startingTimestamp": str(START_MS + 1000 * begin),
                    "startingOffsetsByTimestampStrategy": "latest",
                    "endingTimestamp": str(
                        START_MS + 1000 * self.random.randint(begin, self._number + 5)
                    ),
                }
            case 2:
                special = {
                    place: self.random.choice([-2, self._between(place)]) for place in places
                }
                return {"startingOffsets": _json(special)}
            case _:
                return {}

    def _between(self, place: tuple[str, int]) -> int:
        return self.random.randint(self.starts[place], self.ends[place])

    def _cutting(self) -> dict[str, str]:
        match self.random.randrange(3):
            case 0:
                return {"minPartitions": str(self.random.randint(2, 9))}
            case 1:
                return {"maxRecordsPerPartition": str(self.random.randint(20, 200))}
            case _:
                return {}


def _admin(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def _await(futures: dict[Any, Any]) -> None:
    """Wait while the client still exists: without it, answers are lost."""
    for future in futures.values():
        future.result(TIMEOUT_S)


def _json(offsets: dict[tuple[str, int], int]) -> str:
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in offsets.items():
        found.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(found)
