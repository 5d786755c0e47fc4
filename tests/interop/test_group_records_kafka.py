"""The offsets topic and Apache Kafka: each reads what the other has written.

A real Kafka runs groups of both protocols, transactions and deletions; its files are decoded by us
and by its own tool, record for record, and what we make of them is what its coordinator answers.
Then it is given records that we wrote, and its coordinator and tools read those.
"""

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from test_wire_agreement import struct_differences

from kits.interop.kafka_definitions import Definition
from kits.interop.waiting import wait_for
from kits.interop.wire_json import Seeded, kafka_json
from kits.process.wire_client import WireClient
from kits.wire.wire_messages import Case, fill
from millstream.groups.offsets.loader import LogReader
from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import unpack
from millstream.groups.records import keys, values
from millstream.groups.records.entries import (
    Decoded,
    Entry,
    TransactionEnd,
    decode_batches,
    encode,
)
from millstream.groups.records.keys import KINDS, ClassicGroupKey, Key, OffsetKey
from millstream.groups.records.partition_of import partition_of
from millstream.groups.records.values import VALUES, OffsetCommitValue, write_version
from millstream.model.ids import GroupId, Offset, ProducerEpoch, ProducerId
from millstream.shards.effects import Producer as Writer
from millstream.testing.peers.dump import DumpedRecord
from millstream.testing.peers.dump_tool import Decoder, dump_log
from millstream.testing.peers.kafka import KAFKA_VERSION, ApacheKafka, run_tool
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

pytestmark = pytest.mark.interop

PARTITIONS: Final = 5
TOPIC: Final = "orders"
TIMEOUT_S: Final = 30.0
FIRST: Final = f"{0:020}.log"
SETTINGS: Final = {
    "offsets.topic.num.partitions": str(PARTITIONS),
    "log.cleaner.enable": "false",  # so that every record stays for the comparison
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}
FETCH_VERSION: Final = 9
"""The last one that tells topics by name."""
PASSING_ERRORS: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
GROUPS: Final = ("classic", "next", "pattern", "standalone", "transactional", "gone", "näme-😀")


# -- definitions -------------------------------------------------------------------------------


def group_definitions(jars: Path) -> dict[str, Definition]:
    """Kafka's own, of keys and values, by name."""
    found = {}
    with zipfile.ZipFile(jars / f"kafka-group-coordinator-{KAFKA_VERSION}.jar") as jar:
        for path in jar.namelist():
            if not path.startswith("common/message/") or not path.endswith(".json"):
                continue
            lines = jar.read(path).decode().splitlines()
            text = "\n".join(line for line in lines if not line.lstrip().startswith("//"))
            plain = json.loads(text)
            commons = {one["name"]: one for one in plain.get("commonStructs", ())}
            found[plain["name"]] = Definition(name=plain["name"], definition=plain, commons=commons)
    return found


STRUCT_NAMES: Final = {
    "TargetTopicPartitions": "TopicPartition",
    "CurrentTopicPartitions": "TopicPartitions",
}
"""Where Kafka calls two different structs nearly the same."""


@pytest.mark.parametrize("made", VALUES, ids=lambda made: made.__name__)
def test_values_are_declared_as_kafka_does(jars: Path, made: type[Key]) -> None:
    ours = VALUES[made]
    theirs = group_definitions(jars)[ours.__name__]
    assert theirs.key == KINDS[made]
    assert theirs.versions == ours.VERSIONS
    assert theirs.flexible[0] == ours.FLEXIBLE_FROM
    found = list(struct_differences(ours.__name__, ours, theirs, ours.VERSIONS))
    renamed = tuple(f": struct: {one}, {other}" for one, other in STRUCT_NAMES.items())
    assert [line for line in found if not line.endswith(renamed)] == []


def test_kinds_that_we_do_not_know_are_those_of_groups_that_we_do_not_have(jars: Path) -> None:
    theirs = {one.name: one.key for one in group_definitions(jars).values()}
    unknown = {name for name, kind in theirs.items() if kind not in {0, *KINDS.values()}}
    assert all(name.startswith(("ShareGroup", "StreamsGroup")) for name in unknown), unknown


# -- what Kafka writes -------------------------------------------------------------------------


Committed = dict[int, tuple[int, str | None]]
"""(offset, text) by partition of the topic; the code of an error instead of an offset."""


class KafkaGroups(NamedTuple):
    """What a stopped Kafka left, and what its coordinator answered before."""

    directory: Path
    offsets: dict[str, Committed]
    """By group."""

    def log_of(self, partition: int) -> Path:
        return self.directory / f"__consumer_offsets-{partition}" / FIRST


def consumer(servers: str, group: str, **more: Any) -> Consumer:
    settings = {
        "bootstrap.servers": servers,
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    return Consumer(settings | {name.replace("_", "."): value for name, value in more.items()})


def read_and_commit(servers: str, group: str, topics: list[str], **more: Any) -> None:
    """A member joins, reads everything, commits, leaves."""
    member = consumer(servers, group, **more)
    try:
        member.subscribe(topics)
        message = wait_for(f"a record for {group}", lambda: member.poll(0.5))
        assert message.error() is None, message.error()
        member.commit(offsets=places(5, "a text"), asynchronous=False)
        member.commit(offsets=places(6), asynchronous=False)
    finally:
        member.close()


def places(offset: int, text: str | None = None) -> list[TopicPartition]:
    """Offsets in both partitions, the leader epoch with the second."""
    second = TopicPartition(TOPIC, 1, offset + 1, leader_epoch=0)
    if text is None:
        return [TopicPartition(TOPIC, 0, offset), second]
    return [TopicPartition(TOPIC, 0, offset, text), second]


def commit_in_transactions(servers: str, group: str) -> None:
    """One that commits, and one that does not."""
    reader = consumer(servers, group)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": group, "log_level": 0})
    producer.init_transactions(TIMEOUT_S)
    for offset, end in ((7, producer.commit_transaction), (8, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(TOPIC, b"x")
        metadata = reader.consumer_group_metadata()
        producer.send_offsets_to_transaction(places(offset), metadata, TIMEOUT_S)
        end(TIMEOUT_S)
    reader.close()


def run_groups(servers: str) -> None:
    admin = admin_of(servers)
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(20):
        producer.produce(TOPIC, b"x", partition=number % 2)
    producer.flush(TIMEOUT_S)
    read_and_commit(servers, "classic", [TOPIC])
    read_and_commit(servers, "classic", [TOPIC], group_instance_id="static")
    read_and_commit(servers, "next", [TOPIC], group_protocol="consumer")
    read_and_commit(servers, "pattern", ["^ord.*"], group_protocol="consumer")
    for group in ("standalone", "näme-😀", "gone"):
        alone = consumer(servers, group)
        alone.commit(offsets=places(3, "ein täxt 😀"), asynchronous=False)
        alone.close()
    commit_in_transactions(servers, "transactional")
    admin.delete_consumer_groups(["gone"])["gone"].result(TIMEOUT_S)


def committed(servers: str, group: str, *, require_stable: bool = False) -> Committed:
    """(offset, text) by partition of the topic; asked again while the coordinator is loading.

    Not asked with a real client: the one that we have reads texts beyond their end.
    """
    asked = OffsetFetchRequestGroup(group_id=group, topics=None)
    request = OffsetFetchRequest(groups=[asked], require_stable=require_stable)

    def attempt() -> Committed | None:
        with WireClient(servers) as client:
            (answer,) = client.send(request, FETCH_VERSION).groups
        if answer.error_code in PASSING_ERRORS:
            return None
        assert answer.error_code == ErrorCode.NONE
        return {
            one.partition_index: (one.error_code or one.committed_offset, one.metadata)
            for topic in answer.topics
            for one in topic.partitions
        }

    return wait_for(f"the offsets of {group}", attempt)


def admin_of(servers: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


@pytest.fixture(scope="module")
def kafka_groups(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> KafkaGroups:
    """Kafka is stopped when the test begins."""
    with ApacheKafka(tmp_path_factory.mktemp("groups"), jars=jars, settings=SETTINGS) as kafka:
        run_groups(kafka.bootstrap_servers)
        found = {group: committed(kafka.bootstrap_servers, group) for group in GROUPS}
    return KafkaGroups(kafka.data_directory, found)


def ours_as_json(decoded: Decoded) -> tuple[int, Any, Any]:
    """Offset, key and value in the words of Kafka's tool."""
    what = decoded.what
    assert isinstance(what, Entry)
    key = {"type": str(KINDS[type(what.key)]), "data": key_json(what.key)}
    if what.value is None:
        return decoded.offset, key, None
    version = write_version(what.value)
    value = {
        "version": str(version),
        "data": kafka_json(what.value, version, is_given=False),
    }
    return decoded.offset, key, value


KEY_NAMES: Final = {
    OffsetKey: ("group", "topic", "partition"),
    ClassicGroupKey: ("group",),
    keys.RegularExpressionKey: ("groupId", "regularExpression"),
}


def key_json(key: Key) -> dict[str, Any]:
    names = KEY_NAMES.get(type(key), ("groupId", "memberId"))
    return dict(zip(names, key, strict=False))


def theirs_as_json(record: DumpedRecord) -> tuple[int, Any, Any]:
    assert record.key is not None
    value = None if record.value_bytes < 0 else json.loads(str(record.payload))
    return record.offset, json.loads(record.key), value


def without_insides(told: list[tuple[int, Any, Any]]) -> list[tuple[int, Any, Any]]:
    """Of members that are consumers the tool tells what is in their bytes, instead of the bytes."""
    for _, key, value in told:
        if key["type"] == "2" and value is not None:
            for member in value["data"]["members"]:
                assert member.pop("subscription")
                assert member.pop("assignment")
    return told


def test_we_decode_every_record_as_kafkas_own_tool_does(
    kafka_groups: KafkaGroups, jars: Path
) -> None:
    logs = [kafka_groups.log_of(partition) for partition in range(PARTITIONS)]
    dump = dump_log(logs, jars=jars, decoder=Decoder.OFFSETS)
    assert dump.complaints == []
    kinds = set()
    for path in logs:
        ours = list(decode_batches(path.read_bytes()))
        theirs = dump.file(path).records
        ends = {one.offset: one.what for one in ours if isinstance(one.what, TransactionEnd)}
        markers = {
            one.offset: TransactionEnd(one.end_txn_marker == "COMMIT")
            for one in theirs
            if one.end_txn_marker is not None
        }
        assert ends == markers
        entries = [one for one in ours if isinstance(one.what, Entry)]
        told = [theirs_as_json(one) for one in theirs if one.end_txn_marker is None]
        mine = [ours_as_json(one) for one in entries]
        assert without_insides(mine) == without_insides(told)
        kinds |= {type(one.what.key) for one in entries if isinstance(one.what, Entry)}
    assert kinds >= set(VALUES) - {keys.ConsumerPartitionMetadataKey}


def test_what_we_make_of_kafkas_log_is_what_kafka_answered(kafka_groups: KafkaGroups) -> None:
    for partition in range(PARTITIONS):
        offsets = Offsets()
        log = kafka_groups.log_of(partition).read_bytes()
        rest = list(LogReader(offsets).read(log))
        offsets.on_high_watermark(Offset(2**62))
        for group in GROUPS:
            found = {
                index: (unpack(packed).offset, unpack(packed).metadata)
                for index, packed in offsets.topics_of(GroupId(group)).get(TOPIC, {}).items()
            }
            is_here = partition_of(group, PARTITIONS) == partition
            assert found == (kafka_groups.offsets[group] if is_here else {}), group
            assert is_here or not any(
                isinstance(one.what, Entry) and one.what.key[0] == group for one in rest
            )


def test_the_workload_has_what_it_promises(kafka_groups: KafkaGroups) -> None:
    assert kafka_groups.offsets["transactional"] == {0: (7, ""), 1: (8, "")}
    assert kafka_groups.offsets["gone"] == {}
    assert kafka_groups.offsets["näme-😀"][0] == (3, "ein täxt 😀\0"), "the client's own NUL"
    assert kafka_groups.offsets["next"] == {0: (6, ""), 1: (7, "")}


# -- what we write -----------------------------------------------------------------------------


def some_key(made: Any, texts: list[str], number: int) -> Key:
    if made is OffsetKey:
        return OffsetKey(GroupId(texts[0]), texts[1], number)
    key: Key = made(*texts[: len(made._fields)])
    return key


def random_entries() -> list[Entry]:
    """Every kind, in the version that is written; the same ones each time."""
    found: list[Entry] = []
    for made, value in VALUES.items():
        version = write_version(value())
        for number in range(20):
            choices = Seeded(f"{value.__name__} {number}", has_unknown_tags=False)
            texts = [f"näme 😀 {number}", f"{made.__name__}"]
            key = some_key(made, texts, number)
            filled = fill(Case(value, version), choices)
            if isinstance(filled, OffsetCommitValue):
                filled.expire_timestamp = -1
            found += [Entry(key, filled), Entry(key, None)]
    return found


def test_kafkas_tool_decodes_what_we_write(jars: Path, tmp_path: Path) -> None:
    entries = random_entries()
    path = tmp_path / "__consumer_offsets-0" / FIRST
    path.parent.mkdir()
    path.write_bytes(encode(entries, now_ms=1_700_000_000_000))
    dump = dump_log([path], jars=jars, decoder=Decoder.OFFSETS)
    assert dump.complaints == []
    expected = [ours_as_json(Decoded(Offset(at), one, None)) for at, one in enumerate(entries)]
    assert [theirs_as_json(one) for one in dump.file(path).records] == expected


OUR_GROUP: Final = GroupId("written-by-us")
NOW_MS: Final = 1_900_000_000_000
"""Late enough that nothing of it expires."""


def our_batches(first_offset: int, leader_epoch: int) -> bytes:
    """Offsets in and out of transactions, and a group without members."""
    offset = OffsetCommitValue(offset=5, metadata="täxt", commit_timestamp=NOW_MS)
    group = values.GroupMetadataValue(
        protocol_type="consumer",
        generation=4,
        protocol=None,
        leader=None,
        current_state_timestamp=NOW_MS,
    )
    plain = [
        Entry(ClassicGroupKey(OUR_GROUP), group),
        Entry(OffsetKey(OUR_GROUP, TOPIC, 0), offset),
        Entry(OffsetKey(OUR_GROUP, TOPIC, 1), OffsetCommitValue(offset=6, commit_timestamp=NOW_MS)),
        Entry(OffsetKey(OUR_GROUP, TOPIC, 7), offset),
        Entry(OffsetKey(OUR_GROUP, TOPIC, 7), None),
    ]
    producer = Writer(ProducerId(9_000), ProducerEpoch(0))
    open_offset = OffsetCommitValue(offset=9, commit_timestamp=NOW_MS)
    pending = [Entry(OffsetKey(OUR_GROUP, TOPIC, 1), open_offset)]
    log = b""
    for batch in (encode(plain, now_ms=NOW_MS), encode(pending, now_ms=NOW_MS, producer=producer)):
        batch[:8] = first_offset.to_bytes(8, "big")
        batch[12:16] = leader_epoch.to_bytes(4, "big")
        log += batch
        first_offset += len(plain)
    return log


def append_ours(kafka: ApacheKafka) -> None:
    """Behind what Kafka wrote, as its leader would have; it then recovers the log."""
    path = (
        kafka.data_directory / f"__consumer_offsets-{partition_of(OUR_GROUP, PARTITIONS)}" / FIRST
    )
    before = list(decode_batches(path.read_bytes()))
    path.write_bytes(path.read_bytes() + our_batches(len(before) and before[-1].offset + 1, 0))
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (kafka.data_directory / name).unlink(missing_ok=True)


@pytest.fixture(scope="module")
def kafka_with_ours(jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Kafka whose coordinator has loaded what we wrote."""
    kafka = ApacheKafka(tmp_path_factory.mktemp("ours"), jars=jars, settings=SETTINGS)
    with kafka:
        servers = kafka.bootstrap_servers
        admin = admin_of(servers)
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(TIMEOUT_S)
        assert partition_of("first", PARTITIONS) != partition_of(OUR_GROUP, PARTITIONS)
        alone = consumer(servers, "first")
        alone.commit(offsets=places(1), asynchronous=False)
        alone.close()
    append_ours(kafka)
    with kafka:
        yield kafka.bootstrap_servers


def test_kafkas_coordinator_loads_what_we_write(kafka_with_ours: str) -> None:
    """What is in no transaction counts, and the group is there."""
    assert committed(kafka_with_ours, OUR_GROUP) == {0: (5, "täxt"), 1: (6, "")}
    stable = committed(kafka_with_ours, OUR_GROUP, require_stable=True)
    assert stable == {0: (5, "täxt"), 1: (ErrorCode.UNSTABLE_OFFSET_COMMIT, "")}
    admin = admin_of(kafka_with_ours)
    told = admin.describe_consumer_groups([OUR_GROUP])[OUR_GROUP].result(TIMEOUT_S)
    assert (told.state.name, list(told.members)) == ("EMPTY", [])


def formatted(jars: Path, servers: str, formatter: str) -> list[Any]:
    """The partition of our group, read without a group, which would write to the topic itself."""
    options = {
        "--bootstrap-server": servers,
        "--topic": "__consumer_offsets",
        "--partition": str(partition_of(OUR_GROUP, PARTITIONS)),
        "--offset": "earliest",
        "--max-messages": "6",
        "--formatter": f"org.apache.kafka.tools.consumer.{formatter}",
    }
    arguments = [part for option in options.items() for part in option]
    done = run_tool(jars, "org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)
    assert done.returncode == 0, done.stderr
    return list(documents(done.stdout))


def documents(text: str) -> Iterator[Any]:
    """The formatters put one behind the other, with nothing in between."""
    decoder = json.JSONDecoder()
    at = 0
    while at < len(text.rstrip()):
        found, at = decoder.raw_decode(text, at)
        yield found


def test_kafkas_console_consumer_tells_what_we_write(kafka_with_ours: str, jars: Path) -> None:
    """It reads open transactions too."""
    told = formatted(jars, kafka_with_ours, "OffsetsMessageFormatter")
    assert {one["key"]["data"]["group"] for one in told} == {OUR_GROUP}
    offsets = [one["value"] and one["value"]["data"]["offset"] for one in told]
    assert offsets == [5, 6, 5, None, 9]
    (group,) = formatted(jars, kafka_with_ours, "GroupMetadataMessageFormatter")
    assert group["key"]["data"]["group"] == OUR_GROUP
    assert group["value"]["data"]["generation"] == 4
