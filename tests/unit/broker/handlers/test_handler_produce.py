"""Produce, the Python path: what is stored, what is refused and with which code."""

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest
from crc32c import crc32c

from kits.broker.data_plane import DataPlane, HeldBackground
from kits.storage.log_stories import NOW, batch_of, of_producer
from millstream.kernels.compression import Codec
from millstream.model.errors import OperatingError
from millstream.storage.config import LogConfig, TimestampType
from millstream.testing.log_kit import COMPACTED, read_all
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

VERSIONS = range(3, 14)


def plane_with(config: LogConfig = LogConfig()) -> DataPlane:  # noqa: B008 - immutable
    plane = DataPlane(config)
    plane.create("t", 2)
    return plane


def values(plane: DataPlane, index: int = 0) -> list[bytes | None]:
    return [record.value for record in read_all(plane.leader("t", index).log)]


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_stores_and_tells_the_offset(version: int) -> None:
    plane = plane_with()
    plane.produce("t", batch_of(b"first"), version=version)
    answer = plane.produce("t", batch_of(b"a", b"b"), version=version)
    assert (answer.error_code, answer.base_offset, answer.log_append_time_ms) == (0, 1, -1)
    assert answer.log_start_offset == (0 if version >= 5 else -1)
    assert answer.record_errors == []
    assert answer.error_message is None
    assert values(plane) == [b"first", b"a", b"b"]


@pytest.mark.parametrize("acks", [-1, 1])
def test_several_topics_and_partitions_each_have_their_own_outcome(acks: int) -> None:
    plane = plane_with()
    plane.create("u", number=8)
    request = ProduceRequest(
        acks=acks,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="t",
                partition_data=[
                    PartitionProduceData(index=1, records=batch_of(b"a")),
                    PartitionProduceData(index=9, records=batch_of(b"b")),
                    PartitionProduceData(index=0, records=batch_of(b"c")),
                ],
            ),
            TopicProduceData(
                name="nobody", partition_data=[PartitionProduceData(records=batch_of(b"d"))]
            ),
            TopicProduceData(
                name="u", partition_data=[PartitionProduceData(records=batch_of(b"e"))]
            ),
        ],
    )
    response = plane.answer(plane.send(request, 9), ProduceResponse, 9)
    found = {
        (topic.name, one.index): (one.error_code, one.base_offset)
        for topic in response.responses
        for one in topic.partition_responses
    }
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert found == {
        ("t", 1): (0, 0),
        ("t", 9): unknown,
        ("t", 0): (0, 0),
        ("nobody", 0): unknown,
        ("u", 0): (0, 0),
    }


def test_topic_ids_since_version_13() -> None:
    plane = plane_with()
    assert plane.produce("t", batch_of(b"a"), version=13).error_code == 0
    answer = plane.produce("nobody", batch_of(b"a"), version=13)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID
    answer = plane.produce("t", batch_of(b"a"), index=7, version=13)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# -- what is refused -----------------------------------------------------------------------------


def _with(batch: bytearray, at: int, value: int, *, renew: bool = True) -> bytearray:
    batch[at] = value
    if renew:
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


def _spec(**fields: object) -> bytearray:
    return batch_of(b"a", spec=BatchSpec(timestamp_ms=NOW, **fields))  # type: ignore[arg-type]


BAD: dict[str, tuple[Callable[[], bytes | bytearray | None], ErrorCode]] = {
    "nothing": (lambda: b"", ErrorCode.INVALID_RECORD),
    "null": (lambda: None, ErrorCode.INVALID_RECORD),
    "half a header": (lambda: batch_of(b"a")[:14], ErrorCode.INVALID_RECORD),
    "cut off": (lambda: batch_of(b"a")[:-2], ErrorCode.INVALID_RECORD),
    "a length of nothing": (lambda: b"\0" * 40, ErrorCode.CORRUPT_MESSAGE),
    "a negative length": (lambda: b"\xff" * 40, ErrorCode.CORRUPT_MESSAGE),
    "a length below a header": (
        lambda: b"\0" * 8 + (20).to_bytes(4, "big") + b"\0" * 4 + b"\2" + b"\0" * 15,
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "bytes behind it": (lambda: batch_of(b"a") + b"12345", ErrorCode.INVALID_RECORD),
    "a second batch": (lambda: batch_of(b"a") + batch_of(b"b"), ErrorCode.INVALID_RECORD),
    "magic 0": (lambda: _with(batch_of(b"a"), 16, 0), ErrorCode.INVALID_RECORD),
    "magic 1": (lambda: _with(batch_of(b"a"), 16, 1), ErrorCode.INVALID_RECORD),
    "magic 5": (lambda: _with(batch_of(b"a"), 16, 5), ErrorCode.CORRUPT_MESSAGE),
    "a bad checksum": (
        lambda: _with(batch_of(b"a"), 66, 77, renew=False),
        ErrorCode.CORRUPT_MESSAGE,
    ),
    "an unknown codec": (lambda: _with(batch_of(b"a"), 22, 5), ErrorCode.CORRUPT_MESSAGE),
    "another base offset": (lambda: _spec(base_offset=7), ErrorCode.INVALID_RECORD),
    "a control batch": (lambda: _spec(is_control=True), ErrorCode.INVALID_RECORD),
    "a wrong count": (lambda: _with(batch_of(b"a"), 60, 3), ErrorCode.INVALID_RECORD),
    "the broker's timestamp": (lambda: _with(batch_of(b"a"), 22, 8), ErrorCode.INVALID_TIMESTAMP),
    "a producer without sequence": (
        lambda: _spec(producer_id=4, producer_epoch=0),
        ErrorCode.INVALID_RECORD,
    ),
    "too large": (lambda: batch_of(b"x" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    "far in the future": (
        lambda: batch_of(b"a", stamps=[NOW + 4_000_000]),
        ErrorCode.INVALID_TIMESTAMP,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_records_have_kafkas_codes_and_are_not_stored(name: str) -> None:
    records, code = BAD[name]
    plane = plane_with()
    plane.produce("t", batch_of(b"good"))
    answer = plane.produce("t", records())
    assert (ErrorCode(answer.error_code), answer.base_offset) == (code, -1)
    assert answer.log_append_time_ms == -1
    assert answer.error_message
    assert values(plane) == [b"good"]


@pytest.mark.parametrize("acks", [-2, 2, 32767])
def test_other_acks_are_refused_after_the_partition_was_found(acks: int) -> None:
    plane = plane_with()
    answer = plane.produce("t", batch_of(b"a"), acks=acks)
    assert answer.error_code == ErrorCode.INVALID_REQUIRED_ACKS
    answer = plane.produce("nobody", batch_of(b"a"), acks=acks)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert values(plane) == []


@pytest.mark.parametrize(("version", "code"), [(6, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE), (7, 0)])
def test_zstd_needs_version_7(version: int, code: int) -> None:
    plane = plane_with()
    answer = plane.produce("t", _spec(codec=Codec.ZSTD), version=version)
    assert answer.error_code == code


def test_a_batch_larger_than_a_segment_has_a_code_of_its_own() -> None:
    plane = plane_with(LogConfig(segment_bytes=1000))
    answer = plane.produce("t", batch_of(b"x" * 2000))
    assert answer.error_code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_errors_of_the_log_tell_its_start_and_others_do_not() -> None:
    plane = plane_with()
    plane.produce("t", batch_of(b"a", b"b", b"c"))
    plane.leader("t").log.advance_log_start(plane.leader("t").log_end)
    assert plane.produce("t", _spec(is_control=True)).log_start_offset == 3
    assert plane.produce("t", batch_of(b"x" * 2_000_000)).log_start_offset == -1


def test_records_to_blame_are_named_in_a_compacted_topic() -> None:
    plane = plane_with(COMPACTED)
    pairs = [(None, b"a"), (b"k", b"b"), (None, b"c")]
    answer = plane.produce("t", build_batch(pairs, BatchSpec(timestamp_ms=NOW, codec=Codec.GZIP)))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [one.batch_index for one in answer.record_errors] == [0, 2]
    assert all("key" in (one.batch_index_error_message or "") for one in answer.record_errors)


def test_records_to_blame_are_named_for_timestamps() -> None:
    plane = plane_with(LogConfig(timestamp_before_max_ms=1000))
    stamps = [NOW, NOW - 2000, NOW + 10, NOW + 5_000_000]
    answer = plane.produce("t", batch_of(b"a", b"b", b"c", b"d", stamps=stamps))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [one.batch_index for one in answer.record_errors] == [1, 3]
    older = plane.produce("t", batch_of(b"a", stamps=[NOW - 2000]), version=7)
    assert older.error_code == ErrorCode.INVALID_TIMESTAMP
    assert older.record_errors == []


def test_append_time_is_told() -> None:
    plane = plane_with(LogConfig(timestamp_type=TimestampType.LOG_APPEND_TIME))
    plane.clock.advance(5)
    assert plane.produce("t", batch_of(b"a")).log_append_time_ms == NOW + 5


def test_internal_topics_are_for_the_broker() -> None:
    plane = DataPlane()
    plane.create("__consumer_offsets")
    answer = plane.produce("__consumer_offsets", batch_of(b"a"))
    assert answer.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    answer = plane.produce("__consumer_offsets", batch_of(b"a"), client_id="__admin_client")
    assert answer.error_code == 0


# -- producers -----------------------------------------------------------------------------------


def test_a_duplicate_gets_the_original_offset() -> None:
    """I-20."""
    plane = plane_with()
    for sequence in range(3):
        plane.produce("t", batch_of(b"%d" % sequence, spec=of_producer(5, sequence)))
    again = plane.produce("t", batch_of(b"1", spec=of_producer(5, 1)))
    assert (again.error_code, again.base_offset) == (0, 1)
    assert values(plane) == [b"0", b"1", b"2"]


def test_a_gap_and_an_old_epoch_are_refused() -> None:
    """I-20, I-21."""
    plane = plane_with()
    plane.produce("t", batch_of(b"a", spec=of_producer(5, 0, epoch=3)))
    gap = plane.produce("t", batch_of(b"c", spec=of_producer(5, 2, epoch=3)))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = plane.produce("t", batch_of(b"b", spec=of_producer(5, 1, epoch=2)))
    assert old.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert values(plane) == [b"a"]


def test_transactional_records_are_refused_while_there_is_no_coordinator() -> None:
    plane = plane_with()
    batch = batch_of(b"a", spec=of_producer(5, 0, txn=True))
    answer = plane.produce("t", batch, transactional_id="mine")
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE
    answer = plane.produce("t", batch)
    assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert values(plane) == []


def test_a_transactional_id_alone_does_no_harm() -> None:
    plane = plane_with()
    assert plane.produce("t", batch_of(b"a"), transactional_id="mine").error_code == 0


# -- acks=0 and waiting --------------------------------------------------------------------------


def test_without_acks_there_is_no_answer() -> None:
    plane = plane_with()
    number = plane.send_produce("t", batch_of(b"a"), acks=0)
    assert plane.peer.nothing == [number]
    assert plane.peer.answers == {}
    assert values(plane) == [b"a"]


@pytest.mark.parametrize(
    ("topic", "records", "transactional"),
    [("nobody", batch_of(b"a"), False), ("t", b"junk", False), ("t", batch_of(b"a"), True)],
)
def test_without_acks_an_error_closes_the_connection(
    topic: str, records: bytearray, transactional: bool
) -> None:
    plane = plane_with()
    if transactional:
        records = batch_of(b"a", spec=of_producer(5, 0, txn=True))
    plane.send_produce(topic, records, acks=0)
    assert plane.peer.closed
    assert plane.peer.answers == {}
    assert plane.peer.nothing == []


@pytest.mark.parametrize("acks", [-1, 1])
def test_the_answer_waits_for_the_flush(acks: int) -> None:
    """I-01."""
    background = HeldBackground()
    plane = DataPlane(LogConfig(flush_messages=1), background=background)
    plane.create("t")
    number = plane.send_produce("t", batch_of(b"a"), acks=acks)
    assert plane.answer(number, ProduceResponse, 12) is None
    background.run()
    response = plane.answer(number, ProduceResponse, 12)
    assert response.responses[0].partition_responses[0].error_code == 0
    plane.timers.pass_time(5000)
    assert plane.answer(number, ProduceResponse, 12) is None


def test_a_flush_that_takes_too_long_times_out_once() -> None:
    background = HeldBackground()
    plane = DataPlane(LogConfig(flush_messages=1), background=background)
    plane.create("t")
    number = plane.send_produce("t", batch_of(b"a"), timeout_ms=300)
    plane.timers.pass_time(299)
    assert plane.answer(number, ProduceResponse, 12) is None
    plane.timers.pass_time(1)
    answer = plane.answer(number, ProduceResponse, 12).responses[0].partition_responses[0]
    assert (answer.error_code, answer.base_offset) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    background.run()
    assert plane.answer(number, ProduceResponse, 12) is None


def test_a_flush_that_fails_is_a_storage_error() -> None:
    background = HeldBackground()
    plane = DataPlane(LogConfig(flush_messages=1), background=background)
    plane.create("t")
    number = plane.send_produce("t", batch_of(b"a"))
    plane.disk.faults.fail_directory("/data")
    background.run()
    answer = plane.answer(number, ProduceResponse, 12).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    answer = plane.produce("t", batch_of(b"b"))
    assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_without_acks_a_flush_that_fails_later_closes_the_connection() -> None:
    background = HeldBackground()
    plane = DataPlane(LogConfig(flush_messages=1), background=background)
    plane.create("t")
    number = plane.send_produce("t", batch_of(b"a"), acks=0)
    assert plane.peer.nothing == [number]
    plane.disk.faults.fail_directory("/data")
    background.run()
    assert plane.peer.closed


def test_a_full_disk_refuses_and_goes_on_when_there_is_room() -> None:
    plane = DataPlane(replace(LogConfig(), segment_bytes=4000), capacity_bytes=40_000)
    plane.create("t")
    codes = [plane.produce("t", batch_of(b"x" * 3000)).error_code for _ in range(20)]
    assert codes[0] == 0
    assert codes[-1] == ErrorCode.KAFKA_STORAGE_ERROR
    stored = codes.count(0)
    assert len(read_all(plane.leader("t").log, size_max=10_000)) == stored


def test_a_failed_request_has_every_partition_with_the_error() -> None:
    from millstream.broker.handlers.produce import failed

    topic = TopicProduceData(
        name="t",
        topic_id=UUID(int=7),
        partition_data=[PartitionProduceData(index=1), PartitionProduceData(index=2)],
    )
    for version in VERSIONS:
        response = failed(ProduceRequest(topic_data=[topic]), ErrorCode.INVALID_REQUEST, version)
        again = ProduceResponse.decode(response.encode(version), version)
        found = [(one.index, one.error_code) for one in again.responses[0].partition_responses]
        assert found == [(1, ErrorCode.INVALID_REQUEST), (2, ErrorCode.INVALID_REQUEST)]


def test_a_partition_that_is_led_elsewhere_comes_with_its_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """KIP-951. Nothing is led elsewhere yet, so the log is made to say so."""
    from millstream.replication.errors import NotLeader

    plane = plane_with()
    leader = plane.leader("t")

    def refuse(*_: object, **__: object) -> None:
        error: OperatingError = NotLeader(leader.partition)
        raise error

    monkeypatch.setattr(leader.log, "append_as_leader", refuse, raising=False)
    number = plane.send_produce("t", batch_of(b"a"), version=12)
    response = plane.answer(number, ProduceResponse, 12)
    one = response.responses[0].partition_responses[0]
    assert one.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (one.current_leader.leader_id, one.current_leader.leader_epoch) == (1, 0)
    (node,) = response.node_endpoints
    assert (node.node_id, node.host, node.port) == (1, "broker.example", 9092)
