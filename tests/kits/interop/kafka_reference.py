"""What clients read from a real Kafka, kept for later comparison with what is on its disk."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from kits.interop.waiting import wait_for

TIMEOUT_S: Final = 30.0
TIMES_ASKED: Final = 8

PASSING_ERRORS: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""A broker says that it started before it leads all its partitions."""

OffsetSpec: Any = vars(kafka_admin)["OffsetSpec"]  # has no types


class ReferenceRecord(NamedTuple):
    """One record as a consumer saw it."""

    offset: int
    is_append_time: bool
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class TimeLookup(NamedTuple):
    """The first record at or after a time; -1 when there is none."""

    requested_ms: int
    offset: int
    timestamp_ms: int


class PartitionReference(NamedTuple):
    """Everything a client can learn of a partition. `end` is the high watermark."""

    config: dict[str, str]
    start: int
    stable: int
    end: int
    uncommitted: list[ReferenceRecord]
    committed: list[ReferenceRecord]
    by_time: list[TimeLookup]


Reference = dict[str, PartitionReference]
"""By directory name: topic-partition."""


def read_reference(bootstrap_servers: str, topics: Mapping[str, dict[str, str]]) -> Reference:
    """Read all topics (one partition each) with real clients."""
    # A client that lived through a restart would go on with the old leader epochs.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    starts = _offsets(admin, dict.fromkeys(topics, OffsetSpec.earliest()))
    ends = _offsets(admin, dict.fromkeys(topics, OffsetSpec.latest()))
    stable = _offsets(
        admin, dict.fromkeys(topics, OffsetSpec.latest()), IsolationLevel.READ_COMMITTED
    )
    uncommitted = _consume(bootstrap_servers, topics, "read_uncommitted")
    committed = _consume(bootstrap_servers, topics, "read_committed")
    lookups = _lookups(admin, uncommitted)
    return {
        f"{topic}-0": PartitionReference(
            config=topics[topic],
            start=starts[topic][0],
            stable=stable[topic][0],
            end=ends[topic][0],
            uncommitted=uncommitted[topic],
            committed=committed[topic],
            by_time=lookups[topic],
        )
        for topic in topics
    }


def _offsets(
    admin: AdminClient,
    specs: Mapping[str, Any],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[str, tuple[int, int]]:
    """(offset, timestamp) per topic, asked again while the broker is still taking over."""

    def attempt() -> dict[str, tuple[int, int]] | None:
        asked = {TopicPartition(topic, 0): spec for topic, spec in specs.items()}
        futures = admin.list_offsets(asked, isolation_level=isolation)
        try:
            answers = {key.topic: future.result(TIMEOUT_S) for key, future in futures.items()}
        except KafkaException as failure:
            if failure.args[0].code() in PASSING_ERRORS:
                return None
            raise
        return {topic: (answer.offset, answer.timestamp) for topic, answer in answers.items()}

    return wait_for("offsets of all topics", attempt)


def _consume(
    bootstrap_servers: str, topics: Iterable[str], isolation: str
) -> dict[str, list[ReferenceRecord]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reference",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in topics])
    records: dict[str, list[ReferenceRecord]] = {topic: [] for topic in topics}
    unfinished = set(topics)
    while unfinished:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"nothing more came from {sorted(unfinished)}")
        error = message.error()
        if error is None:
            records[str(message.topic())].append(_record(message))
        elif error.code() == KafkaError._PARTITION_EOF:
            unfinished.discard(str(message.topic()))
        else:
            raise RuntimeError(str(error))
    consumer.close()
    return records


def _record(message: Message) -> ReferenceRecord:
    kind, timestamp_ms = message.timestamp()
    offset = message.offset()
    assert offset is not None
    headers: Any = message.headers() or []
    return ReferenceRecord(
        offset=offset,
        is_append_time=kind == TIMESTAMP_LOG_APPEND_TIME,
        timestamp_ms=timestamp_ms,
        key=message.key(),
        value=message.value(),
        headers=tuple((name, value) for name, value in headers),
    )


def _lookups(
    admin: AdminClient, records: Mapping[str, list[ReferenceRecord]]
) -> dict[str, list[TimeLookup]]:
    """Ask for times before, between and after the records of each topic."""
    asked_of = {}
    for topic, read in records.items():
        times = sorted({record.timestamp_ms for record in read}) or [1]
        between = [times[len(times) * n // TIMES_ASKED] for n in range(TIMES_ASKED)]
        asked_of[topic] = [times[0] - 1, *between, times[-1], times[-1] + 1]
    found: dict[str, list[TimeLookup]] = {topic: [] for topic in records}
    for turn in range(TIMES_ASKED + 3):
        asked = {topic: times[turn] for topic, times in asked_of.items()}
        specs = {topic: OffsetSpec.for_timestamp(at_ms) for topic, at_ms in asked.items()}
        for topic, answer in _offsets(admin, specs).items():
            found[topic].append(TimeLookup(asked[topic], *answer))
    return found


def save_reference(path: Path, reference: Reference) -> None:
    """As JSON; bytes as Latin-1 text, which is exact and readable."""
    path.write_text(json.dumps({name: _plain(value) for name, value in reference.items()}))


def load_reference(path: Path) -> Reference:
    """What `save_reference` wrote."""
    loaded: dict[str, dict[str, Any]] = json.loads(path.read_text())
    return {name: _partition(value) for name, value in loaded.items()}


def _plain(partition: PartitionReference) -> dict[str, Any]:
    plain = partition._asdict()
    for field in ("uncommitted", "committed"):
        plain[field] = [
            [
                *record[:3],
                _text(record.key),
                _text(record.value),
                [[name, _text(value)] for name, value in record.headers],
            ]
            for record in plain[field]
        ]
    return plain


def _partition(plain: dict[str, Any]) -> PartitionReference:
    for field in ("uncommitted", "committed"):
        plain[field] = [
            ReferenceRecord(
                offset=record[0],
                is_append_time=record[1],
                timestamp_ms=record[2],
                key=_bytes(record[3]),
                value=_bytes(record[4]),
                headers=tuple((name, _bytes(value)) for name, value in record[5]),
            )
            for record in plain[field]
        ]
    plain["by_time"] = [TimeLookup(*lookup) for lookup in plain["by_time"]]
    return PartitionReference(**plain)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")
