"""Produce requests staged by the core: which ones, what they answer, and what a failure leaves."""

import errno
from dataclasses import replace

import pytest
from crc32c import crc32c

from kits.broker.core_kit import (
    BIG_SEGMENTS,
    NOW,
    TOPIC_ID,
    TWINS,
    VERSIONS,
    Core,
    Part,
    Twin,
    batch,
    code_of,
    frame,
    produce_body,
    produce_frame,
    sequenced,
)
from millstream.kernels.compression import Codec
from millstream.model.errors import DiskFull, StorageFailed, UnknownPartition
from millstream.model.ids import LeaderEpoch, Offset
from millstream.storage.config import TimestampType
from millstream.testing.log_kit import read_all
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.testing.sim.disk_faults import DiskFault

DISK_FULL = code_of(DiskFull("/data0"))


@pytest.fixture(params=TWINS)
def core(request: pytest.FixtureRequest) -> Core:
    return Core(request.param)


def values(core: Core, index: int = 0) -> list[bytes | None]:
    return [record.value for record in read_all(core.log(index))]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("acks", [1, -1])
def test_every_version_is_answered_after_its_write(core: Core, version: int, acks: int) -> None:
    client = core.connect()
    parts = [(1, batch(b"a", b"b")), (0, batch(b"c"))]
    client.send(produce_frame(parts, version, acks=acks, correlation_id=99))
    assert client.requests() == []
    assert core.table.staged == 1
    assert client.collect() == b""
    assert (core.log(0).log_end, core.log(1).log_end) == (1, 1)
    core.write_staged()
    (answer,) = client.answers(version)
    assert answer.correlation_id == 99
    log_start = 0 if version >= 5 else -1
    assert answer.partitions == [(1, 0, 1, log_start), (0, 0, 1, log_start)]
    (topic,) = answer.response.responses
    assert topic.topic_id == TOPIC_ID if version >= 13 else topic.name == "events"
    assert topic.partition_responses[0].log_append_time_ms == -1
    assert answer.response.throttle_time_ms == 0
    assert values(core) == [b"first", b"c"]
    assert values(core, 1) == [b"first", b"a", b"b"]


def test_acks_0_has_no_answer(core: Core) -> None:
    client = core.connect()
    client.send(produce_frame([(0, batch(b"a"))], acks=0))
    client.send(produce_frame([(0, batch(b"b"))], correlation_id=2))
    assert client.requests() == []
    core.write_staged()
    assert [one.correlation_id for one in client.answers()] == [2]
    assert values(core) == [b"first", b"a", b"b"]
    assert (client.connection.in_flight, core.table.take_failed()) == (0, [])


def test_requests_of_many_connections_share_one_write(core: Core) -> None:
    clients = [core.connect() for _ in range(5)]
    for number, client in enumerate(clients):
        client.send(produce_frame([(0, batch(b"%d" % number))]) * 2)
        assert client.requests() == []
    # A second write would meet this.
    core.disk.faults.plan(DiskFault(operation="write", errno=errno.EIO, skip=1))
    core.write_staged()
    assert values(core) == [b"first", *(b"%d" % (at // 2) for at in range(10))]
    offsets = [one.partitions[0][2] for client in clients for one in client.answers()]
    assert offsets == list(range(1, 11))
    assert core.table.take_ready() == [client.connection for client in clients]
    slot = core.slot()
    counted = (slot.records_in, slot.bytes_in)
    assert counted == (11, 10 * len(batch(b"0")) + len(batch(b"first")))


def test_batches_large_and_small_are_written_in_order(core: Core) -> None:
    client = core.connect()
    sizes = [10, 5000, 20, 30, 9000, 9000, 40]
    client.send(b"".join(produce_frame([(0, batch(b"v" * size))]) for size in sizes))
    assert client.requests() == []
    core.write_staged()
    assert [len(value or b"") for value in values(core)[1:]] == sizes


# -- what is not plain -------------------------------------------------------------------------


def damaged(data: bytearray, at: int) -> bytearray:
    data[at] ^= 1
    return data


def with_crc(data: bytearray) -> bytearray:
    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    return data


def spec_of(**changes: object) -> BatchSpec:
    return BatchSpec(timestamp_ms=NOW)._replace(**changes)  # type: ignore[arg-type]


NOT_PLAIN: dict[str, bytes] = {
    "transactional id": frame(produce_body([(0, batch())], transactional_id="t")),
    "acks of 2": produce_frame([(0, batch())], acks=2),
    "acks of -2": produce_frame([(0, batch())], acks=-2),
    "unknown topic": frame(produce_body([(0, batch())], topic="nothing")),
    "unknown partition": produce_frame([(7, batch())]),
    "negative partition": produce_frame([(-1, batch())]),
    "no partitions": produce_frame([]),
    "null records": produce_frame([(0, None)]),
    "no records": produce_frame([(0, b"")]),
    "a partition twice": produce_frame([(0, batch()), (0, batch())]),
    "one plain partition, one not": produce_frame([(0, batch()), (1, damaged(batch(), 70))]),
    "two batches": produce_frame([(0, batch() + batch())]),
    "a byte behind the batch": produce_frame([(0, batch() + b"x")]),
    "a cut batch": produce_frame([(0, batch()[:-1])]),
    "a wrong CRC": produce_frame([(0, damaged(batch(), 70))]),
    "another magic": produce_frame([(0, damaged(batch(), 16))]),
    "compressed": produce_frame([(0, batch(b"v" * 99, spec=spec_of(codec=Codec.GZIP)))]),
    "transactional": produce_frame(
        [(0, batch(spec=spec_of(producer_id=5, is_transactional=True)))]
    ),
    "control": produce_frame([(0, batch(spec=spec_of(producer_id=5, is_control=True)))]),
    "too large": produce_frame([(0, batch(b"v" * 2_000_000))]),
    "from the future": produce_frame([(0, batch(spec=spec_of(timestamp_ms=NOW + 4_000_000)))]),
    "too late for the segment": produce_frame(
        [(0, batch(spec=spec_of(timestamp_ms=NOW + 3_000_001)))]
    ),
    "another max timestamp": produce_frame([(0, with_crc(damaged(batch(), 42)))]),
    "another record count": produce_frame([(0, with_crc(damaged(batch(), 60)))]),
    "another last offset": produce_frame([(0, with_crc(damaged(batch(), 26)))]),
    "an unknown codec": produce_frame([(0, with_crc(damaged(batch(), 22)))]),
    "a malformed record": produce_frame([(0, with_crc(damaged(batch(), 61)))]),
    "a negative offset": produce_frame([(0, with_crc(bytearray(b"\xff") + batch()[1:]))]),
    "unknown producer": produce_frame([(0, sequenced(6, 0))]),
    "a retry": produce_frame([(0, sequenced(5, 0))]),
    "a gap": produce_frame([(0, sequenced(5, 2))]),
    "an older epoch": produce_frame([(0, sequenced(5, 1, epoch=-1))]),
    "a newer epoch": produce_frame([(0, sequenced(5, 0, epoch=1))]),
    "no sequence": produce_frame([(0, sequenced(5, -1))]),
    "version 2": frame(produce_body([(0, batch())], 3), version=2),
    "version 14": frame(produce_body([(0, batch())], 13), version=14),
}
CONFIG = replace(BIG_SEGMENTS, segment_ms=3_000_000)


@pytest.mark.parametrize("kernel", TWINS)
@pytest.mark.parametrize("name", NOT_PLAIN)
def test_what_is_not_plain_is_for_python_and_changes_nothing(kernel: Twin, name: str) -> None:
    core = Core(kernel, config=CONFIG)
    core.know(5)
    client = core.connect()
    before = core.facts()
    client.send(NOT_PLAIN[name])
    (request,) = client.requests()
    assert request[:5] == (0, 0, NOT_PLAIN[name][7], 1, b"tester")
    assert NOT_PLAIN[name].endswith(request[5])
    assert core.table.staged == 0
    assert core.slot().staged_end == core.log().log_end
    core.write_staged()
    assert core.facts() == before


PLAIN_CONFIGS = {
    "broker's time": replace(BIG_SEGMENTS, timestamp_type=TimestampType.LOG_APPEND_TIME),
    "recompressed": replace(BIG_SEGMENTS, compression=Codec.LZ4),
    "flushed by count": replace(BIG_SEGMENTS, flush_messages=10),
    "small messages": replace(BIG_SEGMENTS, max_message_bytes=len(batch()) - 1),
}


@pytest.mark.parametrize("name", PLAIN_CONFIGS)
def test_a_new_configuration_is_heeded_at_once(core: Core, name: str) -> None:
    client = core.connect()
    client.send(produce_frame([(0, batch())]))
    assert client.requests() == []
    core.log().config = PLAIN_CONFIGS[name]
    core.write_staged()
    core.log().append_as_leader(batch(b""), leader_epoch=LeaderEpoch(0))
    client.send(produce_frame([(0, batch())]))
    assert len(client.requests()) == 1
    core.log().config = BIG_SEGMENTS
    core.log().append_as_leader(batch(), leader_epoch=LeaderEpoch(0))
    client.send(produce_frame([(0, batch())]))
    assert client.requests() == []


def test_a_compacted_topic_needs_keys(core: Core) -> None:
    core.log().config = replace(BIG_SEGMENTS, cleanup_compact=True)
    core.log().append_as_leader(batch(), leader_epoch=LeaderEpoch(0))
    client = core.connect()
    client.send(produce_frame([(0, build_batch([(None, b"v")], spec_of()))]))
    assert len(client.requests()) == 1
    client.send(produce_frame([(0, batch())]))
    assert client.requests() == []


def test_connections_can_be_kept_from_the_core(core: Core) -> None:
    client = core.connect()
    client.connection.allows_fast_path = False
    client.send(produce_frame([(0, batch())]))
    assert len(client.requests()) == 1


def test_acks_all_goes_to_python_where_too_few_are_in_sync(core: Core) -> None:
    core.slot().allows_fast_path_acks_all = False
    client = core.connect()
    client.send(produce_frame([(0, batch())], acks=-1) + produce_frame([(0, batch())], acks=1))
    assert len(client.requests()) == 1


def test_a_removed_partition_is_not_found(core: Core) -> None:
    client = core.connect()
    client.send(produce_frame([(0, batch())]))
    assert client.requests() == []
    core.write_staged()
    names = {"topic": b"events", "topic_id": TOPIC_ID.bytes, "partition": 0}
    core.table.remove(core.slot(1), **names)
    assert core.table.find(b"events", 0) is core.slot()
    core.table.remove(core.slot(), **names)
    assert core.table.find(b"events", 0) is None
    assert core.table.find_by_id(TOPIC_ID.bytes, 0) is None
    assert core.table.find_by_id(TOPIC_ID.bytes, 1) is core.slot(1)
    client.send(produce_frame([(0, batch())]) + produce_frame([(0, batch())], 13))
    assert len(client.requests()) == 2


def test_a_topic_that_was_deleted_and_made_again_is_another(core: Core) -> None:
    client = core.connect()
    client.send(produce_frame([(0, batch())]))
    assert client.requests() == []
    core.write_staged()
    for index in range(2):
        core.table.remove(core.slot(index), topic=b"events", topic_id=b"", partition=index)
    client.send(produce_frame([(0, batch())]))
    assert len(client.requests()) == 1
    core.table.add(core.slot(1), topic=b"events", topic_id=b"", partition=0)
    client.send(produce_frame([(0, batch(b"for the new one"))]))
    assert client.requests() == []
    core.write_staged()
    assert values(core, 1) == [b"first", b"for the new one"]


def test_a_name_is_not_an_id(core: Core) -> None:
    core.table.add(core.slot(), topic=b"n" * 16, topic_id=b"i" * 16, partition=0)
    assert core.table.find(b"i" * 16, 0) is None
    assert core.table.find_by_id(b"n" * 16, 0) is None
    assert core.table.find(b"n" * 16, 0) is core.slot()


# -- producers ---------------------------------------------------------------------------------


def test_sequences_follow_what_is_staged(core: Core) -> None:
    core.know(5)
    client = core.connect()
    for sequence, count in ((1, 2), (3, 1), (4, 5)):
        client.send(produce_frame([(0, sequenced(5, sequence, count=count))]))
    assert client.requests() == []
    core.write_staged()
    (entry,) = core.log().producers.states.entries()
    assert entry.batches == [
        (0, 0, 1, 1, NOW), (1, 2, 2, 3, NOW), (3, 3, 4, 4, NOW), (4, 8, 5, 9, NOW),
    ]  # fmt: skip
    assert entry.last_timestamp_ms == NOW
    client.send(produce_frame([(0, sequenced(5, 9))]) + produce_frame([(0, sequenced(5, 9))]))
    assert [one[0] for one in client.requests()] == [4]  # the retry of what is only staged


def test_the_sequence_after_the_highest_is_0(core: Core) -> None:
    core.know(5)
    (entry,) = core.log().producers.states.entries()
    entry.keep(1, 2**31 - 2, 2, 3, NOW)
    entry.forget_batches()
    entry.keep(2**31 - 3, 2**31 - 2, 1, 1, NOW)
    client = core.connect()
    client.send(produce_frame([(0, sequenced(5, 2**31 - 1, count=2))]))
    client.send(produce_frame([(0, sequenced(5, 1))]))
    assert client.requests() == []
    core.write_staged()
    assert entry.batches[1:] == [(2**31 - 1, 0, 2, 3, NOW), (1, 1, 4, 4, NOW)]


def test_what_may_be_a_retry_is_for_python(core: Core) -> None:
    """I-20. A batch over nearly all sequences: its first one is the next one, too."""
    core.know(5)
    (entry,) = core.log().producers.states.entries()
    entry.keep(9, 8, 1, 1, NOW)
    client = core.connect()
    client.send(produce_frame([(0, sequenced(5, 9))]))
    assert len(client.requests()) == 1


def test_an_open_transaction_keeps_the_producer_in_python(core: Core) -> None:
    core.know(5)
    (entry,) = core.log().producers.states.entries()
    entry.transaction_first_offset = Offset(1)
    client = core.connect()
    client.send(produce_frame([(0, sequenced(5, 1))]))
    assert len(client.requests()) == 1


# -- failures ----------------------------------------------------------------------------------


def test_exactly_the_requests_of_a_failed_partition_get_its_error(core: Core) -> None:
    """The disk of partition 0 is full: what came for 1 is written and says so."""
    core.know(5)
    client = core.connect()
    before = core.log().log_end
    both: list[Part] = [(0, sequenced(5, 2)), (1, batch(b"b"))]
    client.send(produce_frame([(0, sequenced(5, 1))]))
    client.send(produce_frame([(1, batch(b"a"))]) + produce_frame(both))
    assert client.requests() == []
    core.disk.faults.fail_next("write", errno.ENOSPC, path_part="/data0")
    core.write_staged()
    assert [one.partitions for one in client.answers()] == [
        [(0, DISK_FULL, -1, -1)],
        [(1, 0, 1, 0)],
        [(0, DISK_FULL, -1, -1), (1, 0, 2, 0)],
    ]
    assert values(core, 1) == [b"first", b"a", b"b"]
    slot = core.slot()
    assert (slot.log_end, slot.staged_end, slot.staged_bytes) == (before, before, 0)
    assert core.slot().records_in == before
    # The producer's retry is its next sequence again, not one after what never was written.
    client.send(produce_frame([(0, sequenced(5, 1))]))
    assert client.requests() == []
    core.write_staged()
    assert [one.partitions for one in client.answers()] == [[(0, 0, before, 0)]]


def test_a_torn_write_leaves_the_file_as_it_was(core: Core) -> None:
    client = core.connect()
    before = core.facts()
    client.send(produce_frame([(0, batch(b"v" * 4000))]) * 3)
    assert client.requests() == []
    torn = DiskFault(operation="write", errno=errno.ENOSPC, partial_bytes=5000)
    core.disk.faults.plan(torn)
    core.write_staged()
    assert [one.partitions[0][1] for one in client.answers()] == [DISK_FULL] * 3
    assert core.facts() == before


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_can_tell_an_error(core: Core, version: int) -> None:
    client = core.connect()
    client.send(produce_frame([(1, batch()), (0, batch())], version, acks=-1))
    assert client.requests() == []
    core.disk.faults.fail_next("write", errno.ENOSPC, path_part="/data0")
    core.write_staged()
    (answer,) = client.answers(version)
    log_start = 0 if version >= 5 else -1
    assert answer.partitions == [(1, 0, 1, log_start), (0, DISK_FULL, -1, -1)]
    assert answer.response.throttle_time_ms == 0


def test_a_failed_directory_stays_failed(core: Core) -> None:
    client = core.connect()
    failed = code_of(StorageFailed("/data0", "io"))
    for _ in range(2):
        client.send(produce_frame([(0, batch())]))
        client.requests()
        core.disk.faults.fail_next("write", errno.EIO, path_part="/data0")
        core.write_staged()
        assert [one.partitions[0][1] for one in client.answers()] == [failed]


def test_acks_0_fails_by_closing_the_connection(core: Core) -> None:
    client, other = core.connect(), core.connect()
    client.send(produce_frame([(0, batch()), (1, batch())], acks=0) * 2)
    other.send(produce_frame([(1, batch())], acks=0))
    assert client.requests() == other.requests() == []
    core.disk.faults.fail_next("write", errno.ENOSPC, path_part="/data0")
    core.write_staged()
    assert core.table.take_failed() == [client.connection]
    assert core.table.take_failed() == []
    assert client.collect() == other.collect() == b""
    assert client.connection.in_flight == 0


def test_a_released_log_answers_what_was_staged_as_not_written(core: Core) -> None:
    client = core.connect()
    client.send(produce_frame([(0, batch())]))
    assert client.requests() == []
    core.log().release()
    client.send(produce_frame([(0, batch())]))
    assert len(client.requests()) == 1  # nothing more is staged
    core.write_staged()
    gone = code_of(UnknownPartition(core.log().partition))
    assert [one.partitions[0][1] for one in client.answers()] == [gone]


def test_answers_of_a_closed_connection_are_dropped(core: Core) -> None:
    client = core.connect()
    client.send(produce_frame([(0, batch(b"a"))]))
    assert client.requests() == []
    client.connection.drop_output()
    core.write_staged()
    assert client.collect() == b""
    assert values(core) == [b"first", b"a"]


def test_a_python_append_comes_after_what_was_staged(core: Core) -> None:
    """Also when the caller forgot to commit before: the order of arrival holds, and the answers."""
    client = core.connect()
    client.send(produce_frame([(0, batch(b"staged"))]))
    assert client.requests() == []
    appended = core.log().append_as_leader(batch(b"python"), leader_epoch=LeaderEpoch(0))
    assert appended.base_offset == 2
    assert client.collect() == b""
    core.write_staged()
    assert [one.partitions for one in client.answers()] == [[(0, 0, 1, 0)]]
    assert values(core) == [b"first", b"staged", b"python"]


def test_a_failure_before_the_commit_is_told_by_it(core: Core) -> None:
    client = core.connect()
    client.send(produce_frame([(0, batch(b"staged"))]))
    assert client.requests() == []
    core.disk.faults.fail_next("write", errno.ENOSPC, path_part="/data0")
    core.log().roll()
    client.send(produce_frame([(0, batch(b"later"))]))
    assert len(client.requests()) == 1
    core.write_staged()
    assert [one.partitions for one in client.answers()] == [[(0, DISK_FULL, -1, -1)]]


# -- acks=-1 and the high watermark ------------------------------------------------------------


@pytest.fixture(params=TWINS)
def led(request: pytest.FixtureRequest) -> Core:
    """Followers are behind: the high watermark moves only when a test moves it."""
    return Core(request.param, is_followed=False)


def test_acks_all_waits_for_the_high_watermark(led: Core) -> None:
    """I-01. Each request waits for its own last offset; acks=1 does not wait."""
    client = led.connect()
    client.send(produce_frame([(0, batch(b"a"))], acks=1, correlation_id=1))
    client.send(produce_frame([(0, batch(b"b", b"c"))], acks=-1, correlation_id=2))
    client.send(produce_frame([(0, batch(b"d"))], acks=-1, correlation_id=3))
    assert client.requests() == []
    led.write_staged()
    assert [one.correlation_id for one in client.answers()] == [1]
    assert (led.slot().waiting, client.connection.in_flight) == (2, 2)
    led.table.take_ready()
    led.log().set_high_watermark(Offset(3))
    assert client.answers() == []
    led.log().set_high_watermark(Offset(4))
    assert [one.partitions for one in client.answers()] == [[(0, 0, 2, 0)]]
    assert led.table.take_ready() == [client.connection]
    led.slot().advance_high_watermark(3)
    assert led.log().high_watermark == 4
    led.slot().advance_high_watermark(5)
    assert [one.correlation_id for one in client.answers()] == [3]
    assert led.slot().waiting == 0


def test_acks_all_waits_for_every_partition(led: Core) -> None:
    client = led.connect()
    client.send(produce_frame([(0, batch()), (1, batch())], acks=-1))
    client.send(produce_frame([(1, batch())], acks=1))
    assert client.requests() == []
    led.write_staged()
    led.slot(1).advance_high_watermark(3)
    assert client.answers() == []
    led.slot(0).advance_high_watermark(2)
    assert len(client.answers()) == 2


def test_lost_leadership_is_told_to_those_who_wait(led: Core) -> None:
    client = led.connect()
    client.send(produce_frame([(0, batch()), (1, batch())], acks=-1) * 2)
    assert client.requests() == []
    led.write_staged()
    assert led.slot().fail_waiting(6) == 2
    assert client.answers() == []
    led.slot(1).advance_high_watermark(2)
    assert [one.partitions for one in client.answers()] == [[(0, 6, -1, -1), (1, 0, 1, 0)]]
    assert led.slot(1).fail_waiting(6) == 1
    assert [one.partitions for one in client.answers()] == [[(0, 6, -1, -1), (1, 6, -1, -1)]]
    assert led.slot().fail_waiting(6) == 0


def test_a_request_waits_no_longer_than_it_asked_for(led: Core) -> None:
    client = led.connect()
    client.send(produce_frame([(0, batch())], acks=-1, correlation_id=1))
    assert client.requests() == []
    led.clock.advance(1000)
    client.send(produce_frame([(0, batch())], acks=-1, correlation_id=2))
    assert client.requests() == []
    led.write_staged()
    assert led.slot().expire_waiting(NOW + 1499, 7) == 0
    assert led.slot().expire_waiting(NOW + 1500, 7) == 1
    assert [(one.correlation_id, one.partitions) for one in client.answers()] == [
        (1, [(0, 7, -1, -1)])
    ]
    led.log().set_high_watermark(led.log().log_end)
    assert [one.partitions for one in client.answers()] == [[(0, 0, 2, 0)]]


@pytest.mark.parametrize("behind", [1, 10, 60])
def test_many_answers_wait_and_leave_in_order(led: Core, behind: int) -> None:
    """Made answers are kept in one block, which must not grow while there is always one waiting."""
    client = led.connect()
    sent = []
    for number in range(1000):
        client.send(produce_frame([(0, batch(b"%d" % number))], acks=-1, correlation_id=number))
        assert client.requests() == []
        led.write_staged()
        led.slot().advance_high_watermark(number - behind)
        sent += client.answers()
    led.slot().advance_high_watermark(1001)
    sent += client.answers()
    assert [one.correlation_id for one in sent] == list(range(1000))
    assert [one.partitions[0][2] for one in sent] == list(range(1, 1001))
