"""Batches that a broker must refuse, or must not, with Kafka's error code for each.

One table for two brokers: `tests/process/test_produce_codes.py` holds ours to it, and
`tests/interop/test_produce_codes_kafka.py` holds the table to Apache Kafka.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch
from millstream.kernels.compression import Codec, compress
from millstream.testing.record_batches import BatchSpec, Pair
from millstream.wire.api_keys import ApiKey
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

VERSIONS: Final = range(3, 14)
FIRST_WITH_RECORD_ERRORS: Final = 8
FIRST_WITH_TOPIC_IDS: Final = 13
HOUR_MS: Final = 3_600_000
INT_MAX: Final = 2**31 - 1

KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "small": {"max.message.bytes": "300"},
    "punctual": {"message.timestamp.before.max.ms": "60000"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "gzipped": {"compression.type": "gzip"},
}
"""Topics by what they are for."""

_NONE: Final = ErrorCode.NONE
_PAIR: Final[Sequence[Pair]] = ((b"key", b"value"),)


class Step(NamedTuple):
    """One produced batch and what must come of it."""

    records: bytes | None
    code: ErrorCode = _NONE
    offset: int = 0
    """The offsets in the answer, from the first of the case on; -1 for records that are refused."""
    wrong: tuple[int, ...] = ()
    """The records that the answer lists as wrong, where the version can."""


class Outcome(NamedTuple):
    """What a broker answered, as far as it can be compared."""

    code: ErrorCode
    offset: int
    wrong: tuple[int, ...]
    is_stamped: bool
    """Whether the answer has the broker's own time."""
    log_start: int


class Case(NamedTuple):
    """Batches one after the other, of a producer of their own where they have one."""

    name: str
    steps: Callable[[int], Sequence[Step]]
    """Called with a producer id that no other producer has."""
    kind: str = "plain"
    partition: int = 0
    versions: range = VERSIONS
    acks: int | None = None
    """None: whatever the test wants."""


# -- batches -----------------------------------------------------------------------------------


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def batch(
    pairs: Sequence[Pair] = _PAIR,
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: Codec = Codec.NONE,
    ahead_ms: int = 0,
) -> bytearray:
    """A batch from now; `producer` is its id, epoch and first sequence."""
    producer_id, epoch, sequence = producer
    spec = BatchSpec(
        codec=codec,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        timestamp_ms=now_ms() + ahead_ms,
    )
    return build_batch(pairs, spec)


def changed(data: bytearray, at: int, new: bytes, *, is_sealed: bool = True) -> bytes:
    """Other bytes in a batch, with a matching CRC by default."""
    data[at : at + len(new)] = new
    if is_sealed:
        data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


def with_body(body: bytes, codec: Codec = Codec.NONE) -> bytes:
    """A batch of one record whose bytes are these."""
    data = batch()[:61] + body
    data[8:12] = _int(len(data) - 12, 4)
    return changed(data, 21, _int(codec, 2))


def _int(number: int, width: int) -> bytes:
    return number.to_bytes(width, "big", signed=True)


def refused(
    name: str,
    make: Callable[[], bytes | bytearray | None],
    code: ErrorCode,
    *,
    kind: str = "plain",
    partition: int = 0,
    versions: range = VERSIONS,
    wrong: tuple[int, ...] = (),
    acks: int | None = None,
) -> Case:
    """A single batch that is not taken."""

    def steps(_: int) -> list[Step]:
        made = make()
        return [Step(None if made is None else bytes(made), code, -1, wrong)]

    return Case(name, steps, kind, partition, versions, acks)


def taken(
    name: str,
    make: Callable[[], bytes | bytearray],
    *,
    kind: str = "plain",
    versions: range = VERSIONS,
) -> Case:
    """The same batch twice, without a producer id: it is stored twice."""

    def steps(_: int) -> list[Step]:
        return [Step(bytes(make())), Step(bytes(make()), offset=1)]

    return Case(name, steps, kind, 0, versions)


def of_producer(name: str, *sent: tuple[int, int, ErrorCode, int]) -> Case:
    """Batches of one record, each as (epoch, sequence, code, offset)."""

    def steps(producer_id: int) -> list[Step]:
        return [
            Step(bytes(batch(producer=(producer_id, epoch, sequence))), code, offset)
            for epoch, sequence, code, offset in sent
        ]

    return Case(name, steps)


_OUT_OF_ORDER: Final = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
_OLD_EPOCH: Final = ErrorCode.INVALID_PRODUCER_EPOCH
_INVALID: Final = ErrorCode.INVALID_RECORD
_CORRUPT: Final = ErrorCode.CORRUPT_MESSAGE

CASES: Final[Sequence[Case]] = (
    taken("one record", batch),
    taken("gzip", lambda: batch(codec=Codec.GZIP)),
    taken("snappy", lambda: batch(codec=Codec.SNAPPY)),
    taken("lz4", lambda: batch(codec=Codec.LZ4)),
    taken("zstd", lambda: batch(codec=Codec.ZSTD), versions=range(7, 14)),
    refused(
        "zstd in an old version",
        lambda: batch(codec=Codec.ZSTD),
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
        versions=range(3, 7),
    ),
    taken("compressed anew", batch, kind="gzipped"),
    taken("the broker's time", batch, kind="stamped"),
    taken("no key", lambda: batch([(None, b"v")])),
    taken("a tombstone", lambda: batch([(b"k", None)]), kind="compacted"),
    taken("largest", lambda: batch([(b"k", b"v" * 228)]), kind="small"),
    refused(
        "too large",
        lambda: batch([(b"k", b"v" * 300)]),
        ErrorCode.MESSAGE_TOO_LARGE,
        kind="small",
    ),
    # -- places --
    refused(
        "unknown topic",
        batch,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        kind="no-such-topic",
        versions=range(3, 13),
    ),
    refused(
        "unknown topic id",
        batch,
        ErrorCode.UNKNOWN_TOPIC_ID,
        kind="no-such-topic",
        versions=range(13, 14),
    ),
    refused(
        "impossible topic name",
        batch,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        kind="no/such/topic",
        versions=range(3, 13),
    ),
    refused("unknown partition", batch, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition=99),
    refused("negative partition", batch, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partition=-1),
    refused("unknown acks", batch, ErrorCode.INVALID_REQUIRED_ACKS, acks=2),
    # -- the batch --
    refused("no bytes", lambda: b"", _INVALID),
    refused("two batches", lambda: batch() + batch(), _INVALID),
    refused("bad CRC", lambda: changed(batch(), 65, b"?", is_sealed=False), _CORRUPT),
    refused("cut short", lambda: batch()[:-1], _INVALID),
    refused("eleven bytes", lambda: batch()[:11], _INVALID),
    refused("no magic", lambda: batch()[:16], _INVALID),
    refused("only a header", lambda: batch()[:61], _INVALID),
    refused(
        "length too small", lambda: changed(batch(), 8, _int(10, 4), is_sealed=False), _CORRUPT
    ),
    refused("magic 0", lambda: changed(batch(), 16, b"\0"), _INVALID),
    refused("magic 1", lambda: changed(batch(), 16, b"\1"), _INVALID),
    refused("magic 3", lambda: changed(batch(), 16, b"\3"), _CORRUPT),
    refused("a base offset", lambda: changed(batch(), 0, _int(7, 8)), _INVALID),
    refused("no records", lambda: changed(batch(), 57, _int(0, 4)), _INVALID),
    refused("more records told", lambda: changed(batch(), 57, _int(2, 4)), _INVALID),
    refused(
        "more records told and spanned",
        lambda: changed(bytearray(changed(batch(), 57, _int(2, 4))), 23, _int(1, 4)),
        _INVALID,
    ),
    refused("a negative count", lambda: changed(batch(), 57, _int(-1, 4)), _INVALID),
    refused("offsets that go back", lambda: changed(batch(), 23, _int(-1, 4)), _INVALID),
    refused("offsets without records", lambda: changed(batch(), 23, _int(3, 4)), _INVALID),
    refused("a control batch", lambda: changed(batch(), 21, _int(0x20, 2)), _INVALID),
    refused(
        "transactional without an id",
        lambda: changed(batch(producer=(1, 0, 0)), 21, _int(0x10, 2)),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    # -- the records --
    refused(
        "no key in a compacted topic",
        lambda: batch([(b"k", b"v"), (None, b"v"), (b"k", b"v"), (None, b"v")]),
        _INVALID,
        kind="compacted",
        wrong=(1, 3),
    ),
    refused(
        "no key in a compacted topic, compressed",
        lambda: batch([(None, b"v"), (b"k", b"v")], codec=Codec.LZ4),
        _INVALID,
        kind="compacted",
        wrong=(0,),
    ),
    refused(
        "too far ahead",
        lambda: batch(ahead_ms=2 * HOUR_MS),
        ErrorCode.INVALID_TIMESTAMP,
        wrong=(0,),
    ),
    refused(
        "too long ago",
        lambda: batch([(b"k", b"v")] * 2, ahead_ms=-HOUR_MS),
        ErrorCode.INVALID_TIMESTAMP,
        kind="punctual",
        wrong=(0, 1),
    ),
    taken("long ago", lambda: batch(ahead_ms=-HOUR_MS)),
    taken("no timestamp", lambda: batch(ahead_ms=-now_ms() - 1)),
    refused(
        "the broker's time from a client",
        lambda: changed(batch(), 21, _int(0x08, 2)),
        ErrorCode.INVALID_TIMESTAMP,
        kind="stamped",
        wrong=(0,),
    ),
    taken("a wrong largest timestamp", lambda: changed(batch(), 35, _int(0, 8))),
    taken("a leader epoch", lambda: changed(batch(), 12, _int(9, 4))),
    taken("a sequence of nobody", lambda: batch(producer=(-1, 3, 7))),
    taken("unknown attributes", lambda: changed(batch(), 21, _int(0x180, 2))),
    taken("attributes of a record", lambda: changed(batch(), 62, b"\5")),
    refused("a record too long", lambda: with_body(b"\3\xff\xff\xff\xff\xff"), _INVALID),
    refused("a record missing", lambda: with_body(b""), _INVALID),
    refused("bytes behind the records", lambda: with_body(bytes(batch()[61:]) + b"xx"), _INVALID),
    refused(
        "a record too long, compressed",
        lambda: with_body(compress(Codec.GZIP, b"\3\xff\xff\xff", None), Codec.GZIP),
        _INVALID,
    ),
    refused(
        "a record missing, compressed",
        lambda: with_body(compress(Codec.LZ4, b"", None), Codec.LZ4),
        _INVALID,
    ),
    # -- producers --
    of_producer("in order", (0, 0, _NONE, 0), (0, 1, _NONE, 1), (0, 2, _NONE, 2)),
    of_producer("begins anywhere", (0, 7, _NONE, 0), (0, 8, _NONE, 1)),
    of_producer("a gap", (0, 0, _NONE, 0), (0, 2, _OUT_OF_ORDER, -1), (0, 1, _NONE, 1)),
    of_producer("a duplicate", (0, 0, _NONE, 0), (0, 0, _NONE, 0), (0, 1, _NONE, 1)),
    of_producer(
        "duplicates of the last five",
        *((0, number, _NONE, number) for number in range(6)),
        *((0, number, _NONE, number) for number in range(1, 6)),
        (0, 6, _NONE, 6),
    ),
    of_producer(
        "a duplicate of long ago",
        *((0, number, _NONE, number) for number in range(6)),
        (0, 0, _OUT_OF_ORDER, -1),
    ),
    of_producer("an old epoch", (1, 0, _NONE, 0), (0, 1, _OLD_EPOCH, -1), (1, 1, _NONE, 1)),
    of_producer("a new epoch", (0, 0, _NONE, 0), (1, 0, _NONE, 1), (1, 1, _NONE, 2)),
    of_producer("a new epoch's gap", (0, 0, _NONE, 0), (1, 1, _OUT_OF_ORDER, -1)),
    of_producer(
        "sequences go round",
        (0, INT_MAX, _NONE, 0),
        (0, 0, _NONE, 1),
        (0, 1, _NONE, 2),
        (0, INT_MAX, _NONE, 0),
    ),
    Case(
        "a duplicate in another codec",
        lambda producer_id: [
            Step(bytes(batch(producer=(producer_id, 0, 0)))),
            Step(bytes(batch(producer=(producer_id, 0, 0), codec=Codec.GZIP))),
        ],
    ),
    Case(
        "half a duplicate",
        lambda producer_id: [
            Step(bytes(batch([(b"k", b"v")] * 2, producer=(producer_id, 0, 0)))),
            Step(bytes(batch(producer=(producer_id, 0, 1))), _OUT_OF_ORDER, -1),
        ],
    ),
    refused("a producer without sequence", lambda: batch(producer=(5, 0, -1)), _INVALID),
)


_UNKNOWN: Final = ErrorCode.UNKNOWN_SERVER_ERROR

DIFFERENCES: Final[Sequence[tuple[Case, ErrorCode]]] = (
    # Kafka answers these as faults of its own.
    (refused("an unknown codec", lambda: changed(batch(), 21, _int(5, 2)), _CORRUPT), _UNKNOWN),
    (refused("no gzip", lambda: with_body(b"garbage" * 9, Codec.GZIP), _CORRUPT), _UNKNOWN),
    (refused("no snappy", lambda: with_body(b"garbage" * 9, Codec.SNAPPY), _CORRUPT), _UNKNOWN),
    (refused("no lz4", lambda: with_body(b"garbage" * 9, Codec.LZ4), _CORRUPT), _UNKNOWN),
    (
        refused(
            "no zstd",
            lambda: with_body(b"garbage" * 9, Codec.ZSTD),
            _CORRUPT,
            versions=range(7, 14),
        ),
        _UNKNOWN,
    ),
    # And takes these, corrected or as they are.
    (
        refused(
            "the broker's time where it is the client's",
            lambda: changed(batch(), 21, _int(0x08, 2)),
            ErrorCode.INVALID_TIMESTAMP,
            wrong=(0,),
        ),
        _NONE,
    ),
    (refused("a delete horizon", lambda: changed(batch(), 21, _int(0x40, 2)), _INVALID), _NONE),
    (refused("a record's own offset", lambda: changed(batch(), 64, b"\2"), _INVALID), _NONE),
    (refused("a producer without epoch", lambda: batch(producer=(5, -1, 0)), _INVALID), _NONE),
    (refused("a few bytes more", lambda: batch() + b"xx", _INVALID), _NONE),
    (refused("twenty bytes more", lambda: batch() + bytes(20), _INVALID), _CORRUPT),
)
"""Where our code differs from Kafka's, which stands beside it; `handlers/produce.py` too."""


# -- sending to a broker ---------------------------------------------------------------------------


class Asker:
    """Sends cases to one broker, whose topics it makes."""

    def __init__(self, client: WireClient, configs: Mapping[str, str] | None = None) -> None:
        """`configs` are given to all topics besides their own."""
        self.client = client
        self.configs = dict(configs or {})
        self._prefix = f"codes-{uuid.uuid4().hex[:8]}-"
        self._ids: dict[str, uuid.UUID] = {}
        self._producers = 0
        for kind, own in KINDS.items():
            settings = {
                key.replace(".", "_"): text for key, text in {**(configs or {}), **own}.items()
            }
            client.create_topic(self.name_of(kind), 1, **settings)
        until(self._are_led, "the topics have leaders")

    def name_of(self, kind: str) -> str:
        return self._prefix + kind if kind in KINDS else kind

    def _are_led(self) -> bool:
        names = [MetadataRequestTopic(name=self.name_of(kind)) for kind in KINDS]
        answer = self.client.send(
            MetadataRequest(topics=names, allow_auto_topic_creation=False), 12
        )
        self._ids = {topic.name or "": topic.topic_id for topic in answer.topics}
        return all(
            topic.error_code == 0 and topic.partitions[0].error_code == 0 for topic in answer.topics
        )

    def new_producer(self) -> int:
        """A number in a range that no broker of a test gives out."""
        self._producers += 1
        return 1_000_000_000 + self._producers

    def request(
        self, case: Case, records: bytes | None, *, acks: int, version: int
    ) -> ProduceRequest:
        part = PartitionProduceData(index=case.partition, records=records)
        topic = TopicProduceData(partition_data=[part])
        if version >= FIRST_WITH_TOPIC_IDS:
            topic.topic_id = self._ids.get(self.name_of(case.kind), uuid.UUID(int=7 << 64 | 7))
        else:
            topic.name = self.name_of(case.kind)
        chosen = acks if case.acks is None else case.acks
        return ProduceRequest(acks=chosen, timeout_ms=10_000, topic_data=[topic])

    def outcomes(self, case: Case, *, acks: int, version: int) -> list[Outcome]:
        found: list[Outcome] = []
        first: int | None = None
        for step in case.steps(self.new_producer()):
            request = self.request(case, step.records, acks=acks, version=version)
            answer = self.client.send(request, version)
            one = answer.responses[0].partition_responses[0]
            assert one.index == case.partition
            code = ErrorCode(one.error_code)
            if first is None and code is _NONE:
                first = one.base_offset
            found.append(
                Outcome(
                    code,
                    one.base_offset - (first or 0) if code is _NONE else one.base_offset,
                    tuple(error.batch_index for error in one.record_errors),
                    one.log_append_time_ms >= 0,
                    one.log_start_offset,
                )
            )
        return found

    def is_refused_silently(self, place: str, case: Case, version: int) -> bool:
        """Whether a last batch without acknowledgement closes the connection."""
        steps = case.steps(self.new_producer())
        with WireClient(place) as client:
            try:
                for step in steps:
                    client.write(self.request(case, step.records, acks=0, version=version), version)
                client.write(ApiVersionsRequest(), 0)
                client.read(ApiKey.API_VERSIONS, 0)
            except (EOFError, ConnectionError):
                return True
        return False


def expected(case: Case, version: int) -> list[tuple[ErrorCode, int, tuple[int, ...]]]:
    """Code, offset and wrong records of each step, as this version reports them."""
    has_errors = version >= FIRST_WITH_RECORD_ERRORS
    return [(step.code, step.offset, step.wrong if has_errors else ()) for step in case.steps(1)]
