"""Broker keys that clients may alter, changed while the broker runs, and what follows.

The defaults of topics are not here: `test_topic_keys_*.py` turn them together with the topics'.
"""

import gc
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kits.broker.topic_keys_kit import (
    CLEANED_AT_ONCE,
    Bench,
    effect_of,
    keys_with_a_test,
    running_bench,
    wall_ms,
)
from kits.process.waiting_for import until
from kits.process.wire_client import WireClient, build_batch
from millstream.broker.net.admission import ADMINISTRATORS_MAX
from millstream.model.config.broker_keys import BROKER_KEYS
from millstream.model.config.definition import Mode
from millstream.model.config.resources import ResourceType
from millstream.model.config.topic_keys import TOPIC_KEYS
from millstream.testing import BrokerThread
from millstream.testing.record_batches import BatchSpec
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.metadata import MetadataRequest

ALL, ME = "", "1"
"""Names of the resources: the defaults of all brokers, and this broker's own settings."""
DYNAMIC_DEFAULT, DYNAMIC_BROKER, STATIC, DEFAULT = 3, 2, 4, 5
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with running_bench({"max.connections": "1000"}) as running:
        yield running


@pytest.fixture(params=[ALL, ME], ids=["all brokers", "this broker"])
def name(request: pytest.FixtureRequest) -> str:
    given: str = request.param
    return given


@contextmanager
def turned(bench: Bench, name: str, key: str, value: str) -> Iterator[None]:
    bench.alter(ResourceType.BROKER, name, key, value)
    try:
        yield
    finally:
        bench.alter(ResourceType.BROKER, name, key, None)


# -- connections -------------------------------------------------------------------------------


def is_served(client: WireClient) -> bool:
    try:
        answer = client.send(MetadataRequest(topics=[]), 9)
    except (EOFError, ConnectionError):
        return False
    return bool(answer.brokers)


def let_in(bench: Bench, wanted: int, address: str = "127.0.0.1") -> int:
    """How many of this many further connections the broker keeps and serves."""
    host, _, port = bench.broker.bootstrap_servers.rpartition(":")
    with ExitStack() as stack:
        clients = []
        for _ in range(wanted):
            client = WireClient(bench.broker.bootstrap_servers)
            stack.callback(client.socket.close)
            if address != host:
                client.socket.close()
                place = (host, int(port))
                client.socket = socket.create_connection(place, 20, source_address=(address, 0))
                stack.callback(client.socket.close)
            clients.append(client)
            is_served(client)  # one after the other: a refused one leaves no room
        return sum(is_served(client) for client in clients)


@effect_of("max.connections")
def test_connections_above_the_limit_are_closed(bench: Bench, name: str) -> None:
    """Until another ends, or there may be more; a few of this machine are served nevertheless."""
    with turned(bench, name, "max.connections", "3"):
        until(lambda: let_in(bench, 6) == 2 + ADMINISTRATORS_MAX, "besides the bench's own")
    until(lambda: let_in(bench, 6) == 6, "no limit any more")


@effect_of("max.connections.per.ip")
def test_connections_of_one_address_above_the_limit_are_closed(bench: Bench, name: str) -> None:
    assert let_in(bench, 6) == 6
    few = ADMINISTRATORS_MAX
    with turned(bench, name, "max.connections.per.ip", "3"):
        until(lambda: let_in(bench, 6) == 2 + few, "two more than the bench's own")
        until(lambda: let_in(bench, 6, "127.0.0.2") == 3 + few, "another address has its own")
    assert let_in(bench, 6) == 6


@effect_of("max.connections.per.ip.overrides")
def test_an_address_can_have_a_limit_of_its_own(bench: Bench, name: str) -> None:
    key = "max.connections.per.ip.overrides"
    with turned(bench, name, key, "127.0.0.2:1,127.0.0.3:2"):
        few = ADMINISTRATORS_MAX
        until(lambda: let_in(bench, 5, "127.0.0.2") == 1 + few, "one of the first address")
        until(lambda: let_in(bench, 5, "127.0.0.3") == 2 + few, "two of the other")
        assert let_in(bench, 4) == 4
    until(lambda: let_in(bench, 4, address="127.0.0.2") == 4, "no limit any more")


# -- the cleaner -------------------------------------------------------------------------------


def send_buffer_bytes(settings: dict[str, object]) -> int:
    """What the kernel was asked for, on the broker's side of a connection; it takes the double."""
    with BrokerThread(settings) as broker, WireClient(broker.bootstrap_servers) as client:
        client.send(ApiVersionsRequest(), 0)
        name = client.socket.getsockname()
        for one in gc.get_objects():
            if type(one) is socket.socket and one.fileno() >= 0:
                with suppress(OSError):
                    if one.getpeername() == name:
                        return one.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) // 2
    raise AssertionError("the broker's socket was not found")


def test_send_buffers_are_as_large_as_told() -> None:
    """`socket.send.buffer.bytes`, which cannot change while the broker runs."""
    key = "socket.send.buffer.bytes"
    assert send_buffer_bytes({}) == 262_144
    assert send_buffer_bytes({key: 50_000}) == 50_000
    of_the_system = send_buffer_bytes({key: -1})
    assert of_the_system not in (50_000, 262_144)
    assert send_buffer_bytes({key: 0}) == of_the_system


@effect_of("log.cleaner.backoff.ms")
def test_how_often_the_cleaner_looks(bench: Bench, name: str) -> None:
    """With an hour between, it looks when a setting changes and not again."""
    topic = bench.topic(CLEANED_AT_ONCE)
    with turned(bench, name, "log.cleaner.backoff.ms", str(HOUR_MS)):
        bench.put_versions(topic, b"a")
        bench.put(topic, [(b"b", b"b" * 200)])
        # Far longer than it takes otherwise: thirty milliseconds, and those of a checkpoint.
        until_later = time.monotonic() + 0.5
        until(lambda: time.monotonic() > until_later, "half a second has passed")
        assert len(bench.values_of(topic, b"a")) == 3
    bench.until_compacted(topic, b"a")


@effect_of("log.cleaner.io.max.bytes.per.second")
def test_how_fast_the_cleaner_is(bench: Bench, name: str) -> None:
    """About 20 kB are read twice and half of them written."""

    def seconds_to_clean() -> float:
        topic = bench.topic({**CLEANED_AT_ONCE, "internal.segment.bytes": "10400"})
        bench.put(topic, [(b"a", b"1" * 10_000)])
        bench.put(topic, [(b"a", b"2" * 10_000)])
        began_s = time.monotonic()
        bench.put(topic, [(b"rest", b"r" * 10_000)])
        bench.until_compacted(topic, b"a")
        return time.monotonic() - began_s

    seconds_to_clean()
    with turned(bench, name, "log.cleaner.io.max.bytes.per.second", "25000"):
        slow_s = seconds_to_clean()
        assert slow_s >= 0.8
    assert min(seconds_to_clean() for _ in range(2)) < slow_s / 2


# -- moves between log directories -------------------------------------------------------------

MOVED_BYTES = 4_000_000


class Moving:
    """A broker with two log directories and a partition that is to go from one to the other."""

    def __init__(self, bench: Bench, directories: tuple[Path, Path]) -> None:
        self.bench = bench
        self.topic = bench.topic()
        for _ in range(4):
            bench.put(self.topic, [(b"key", b"x" * (MOVED_BYTES // 4))])
        name = f"{self.topic}-0"
        self._source, self._target = sorted(
            directories, key=lambda one: (one / name).exists(), reverse=True
        )

    def begin(self) -> None:
        topics = [AlterReplicaLogDirTopic(name=self.topic, partitions=[0])]
        move = AlterReplicaLogDir(path=str(self._target), topics=topics)
        answer = self.bench.client.send(AlterReplicaLogDirsRequest(dirs=[move]), 2)
        assert answer.results[0].partitions[0].error_code == 0

    def lag(self) -> int | None:
        """How far the copy is behind; None without one."""
        answer = self.bench.client.send(DescribeLogDirsRequest(topics=None), 4)
        for one in answer.results:
            for topic in one.topics:
                for partition in topic.partitions:
                    if topic.name == self.topic and partition.is_future_key:
                        return int(partition.offset_lag)
        return None

    @property
    def is_there(self) -> bool:
        return (self._target / f"{self.topic}-0").exists()


@contextmanager
def moving(root: Path) -> Iterator[Moving]:
    directories = root / "one", root / "two"
    with running_bench({"log.dirs": ",".join(map(str, directories))}) as bench:
        yield Moving(bench, directories)


@effect_of("replica.alter.log.dirs.io.max.bytes.per.second")
def test_how_fast_partitions_move(tmp_path: Path, name: str) -> None:
    key = "replica.alter.log.dirs.io.max.bytes.per.second"
    with moving(tmp_path) as one:
        one.bench.alter(ResourceType.BROKER, name, key, "0")
        one.begin()
        began_s = time.monotonic()
        until(lambda: time.monotonic() > began_s + 0.6, "it had time enough without the limit")
        assert one.lag()
        one.bench.alter(ResourceType.BROKER, name, key, str(MOVED_BYTES // 2))
        began_s = time.monotonic()
        until(lambda: one.is_there, "the move goes on at the rate that was set meanwhile")
        assert time.monotonic() - began_s > 0.9, (
            "all but the last mebibyte at half a topic a second"
        )
        one.bench.alter(ResourceType.BROKER, name, key, None)
        assert len(one.bench.records(one.topic)) == 4


def test_a_move_that_is_held_back_does_not_hold_back_the_stop(tmp_path: Path) -> None:
    key = "replica.alter.log.dirs.io.max.bytes.per.second"
    with moving(tmp_path) as one:
        one.bench.alter(ResourceType.BROKER, ALL, key, "1")
        one.begin()
        until(one.lag, "the copy has begun")
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 5.0


def test_a_cleaning_that_is_held_back_does_not_hold_back_the_stop() -> None:
    key = "log.cleaner.io.max.bytes.per.second"
    with running_bench({key: "1"}) as bench:
        topic = bench.topic(CLEANED_AT_ONCE)
        bench.put_versions(topic, b"a")
        until(
            lambda: any("compaction" in one.name for one in threading.enumerate()),
            "the cleaner waits for the throttle",
        )
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 5.0


# -- producers ---------------------------------------------------------------------------------


def producers(bench: Bench, topic: str) -> list[int]:
    asked = TopicRequest(name=topic, partition_indexes=[0])
    answer = bench.client.send(DescribeProducersRequest(topics=[asked]), 0)
    return [one.producer_id for one in answer.topics[0].partitions[0].active_producers]


@effect_of("producer.id.expiration.ms")
def test_idle_producers_are_forgotten_after_their_time(bench: Bench, name: str) -> None:
    topic = bench.topic()
    spec = BatchSpec(
        producer_id=77, producer_epoch=0, base_sequence=0, timestamp_ms=wall_ms() - HOUR_MS
    )
    bench.client.produce(topic, bytes(build_batch([(b"k", b"v")], spec)))
    assert producers(bench, topic) == [77]
    with turned(bench, name, "producer.id.expiration.ms", str(2 * HOUR_MS)):
        assert producers(bench, topic) == [77]
    with turned(bench, name, "producer.id.expiration.ms", "1000"):
        until(lambda: not producers(bench, topic), "the producer is forgotten", timeout_s=5)
    spec = spec._replace(base_sequence=5)
    bench.client.produce(topic, bytes(build_batch([(b"k", b"v")], spec)))
    assert producers(bench, topic) == [77]


# -- groups ------------------------------------------------------------------------------------


def joined(bench: Bench, group: str, member: str, topic: str) -> None:
    request = ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id=member,
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=[topic],
        topic_partitions=[],
    )
    again = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)

    def is_in() -> bool:
        code = bench.client.send(request, 1).error_code
        assert code in (0, *again)
        return bool(code == 0)

    until(is_in, "the member is in the group", timeout_s=10)


def epochs(bench: Bench, group: str) -> tuple[int, int]:
    """Of the group, and of its last assignment."""
    answer = bench.client.send(ConsumerGroupDescribeRequest(group_ids=[group]), 1)
    (found,) = answer.groups
    return found.group_epoch, found.assignment_epoch


@effect_of("group.consumer.assignment.interval.ms")
def test_assignments_of_a_group_are_computed_no_more_often(bench: Bench, name: str) -> None:
    topic = bench.topic()
    bench.client.send(FindCoordinatorRequest(coordinator_keys=["any"]), 4)
    key = "group.consumer.assignment.interval.ms"
    group = f"group of {topic}"
    with turned(bench, name, key, "15000"):
        joined(bench, group, "first", topic)
        joined(bench, group, "second", topic)
        newest, assigned = epochs(bench, group)
        assert assigned < newest
    with turned(bench, name, key, "0"):
        joined(bench, group, "third", topic)
        newest, assigned = epochs(bench, group)
        assert assigned == newest


# -- all of them -------------------------------------------------------------------------------


def test_every_key_that_can_change_is_seen_to_work() -> None:
    here = Path(__file__)
    own = set(keys_with_a_test(here.parent, "test_broker_keys*.py"))
    of_topics = keys_with_a_test(here.parent, "test_topic_keys_*.py")
    defaults = {TOPIC_KEYS[key].synonyms[0] for key in of_topics if TOPIC_KEYS[key].synonyms}
    dynamic = {key.name for key in BROKER_KEYS.values() if key.mode is not Mode.READ_ONLY}
    assert own | defaults == dynamic
    assert not own & defaults


@pytest.mark.parametrize(
    "key", [key.name for key in BROKER_KEYS.values() if key.mode is Mode.READ_ONLY]
)
def test_the_others_are_refused(bench: Bench, name: str, key: str) -> None:
    value = BROKER_KEYS[key].default or "1"
    code, text = bench.try_alter(ResourceType.BROKER, name, key, value)
    assert code is ErrorCode.INVALID_REQUEST
    assert key in (text or "")


def described(bench: Bench, name: str, key: str) -> tuple[str | None, int] | None:
    """The value and where it comes from."""
    resource = DescribeConfigsResource(
        resource_type=ResourceType.BROKER, resource_name=name, configuration_keys=[key]
    )
    (result,) = bench.client.send(DescribeConfigsRequest(resources=[resource]), 4).results
    assert result.error_code == 0
    return next(((one.value, one.config_source) for one in result.configs), None)


def test_the_nearest_setting_is_told(bench: Bench) -> None:
    """This broker's, else all brokers', else the file's, else the default."""
    key = "max.connections"
    assert described(bench, ME, key) == ("1000", STATIC)
    assert described(bench, ALL, key) is None
    with turned(bench, ALL, key, "900"):
        assert described(bench, ME, key) == ("900", DYNAMIC_DEFAULT)
        assert described(bench, ALL, key) == ("900", DYNAMIC_DEFAULT)
        with turned(bench, ME, key, "800"):
            assert described(bench, ME, key) == ("800", DYNAMIC_BROKER)
            assert described(bench, ALL, key) == ("900", DYNAMIC_DEFAULT)
        assert described(bench, ME, key) == ("900", DYNAMIC_DEFAULT)
    assert described(bench, ME, key) == ("1000", STATIC)
    assert described(bench, ME, "max.connections.per.ip") == ("2147483647", DEFAULT)


def test_the_nearest_setting_counts(bench: Bench) -> None:
    key, few = "max.connections.per.ip", ADMINISTRATORS_MAX
    with turned(bench, ALL, key, "2"):
        until(lambda: let_in(bench, 7) == 1 + few, "one besides the bench's own")
        with turned(bench, ME, key, "4"):
            until(lambda: let_in(bench, 7) == 3 + few, "three besides the bench's own")
        until(lambda: let_in(bench, 7) == 1 + few, "one besides the bench's own")
