"""Produced batches that decompress to much: looked at by another thread, stored in order."""

from types import GeneratorType
from typing import Any

import pytest

from kits.broker.data_plane import DataPlane
from kits.storage.log_stories import NOW, batch_of
from millstream.broker.handlers import produce
from millstream.broker.handlers.produce import BATCH_COST_BYTES, BYTES_PER_TURN
from millstream.broker.requests.context import Context, RequestFacts
from millstream.controller.image import ImageChange
from millstream.kernels.compression import Codec, decompress
from millstream.model.ids import LeaderEpoch
from millstream.runtime.scheduler import StepGenerator
from millstream.storage import validation
from millstream.storage.config import LogConfig, TimestampType
from millstream.storage.producers.machine import Origin
from millstream.testing.log_kit import read_all
from millstream.testing.record_batches import BatchSpec, build_batch
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

LARGE = BatchSpec(codec=Codec.ZSTD, timestamp_ms=NOW)
ROOMY = LogConfig(max_message_bytes=100_000_000)


def bomb(size: int = 3 * BYTES_PER_TURN, spec: BatchSpec = LARGE) -> bytes:
    return bytes(build_batch([(b"k", bytes(size))], spec))


def begun(plane: DataPlane, *batches: bytes) -> StepGenerator[ProduceResponse | None]:
    """The handler's steps; one partition for each batch."""
    data = [PartitionProduceData(index=at, records=one) for at, one in enumerate(batches)]
    request = ProduceRequest(
        acks=-1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=data)]
    )
    facts = RequestFacts(0, 9, 1, "test", 1, 0, 0)
    received = ProduceRequest.decode(bytearray(request.encode(9)), 9)
    answer = produce.handle(Context(plane.services, plane.peer, facts), received)
    return answer if isinstance(answer, GeneratorType) else at_once(answer)


def at_once(answer: Any) -> StepGenerator[ProduceResponse | None]:
    """Steps that have nothing left to do."""
    yield from ()
    return answer  # type: ignore[no-any-return]


def finish(steps: StepGenerator[ProduceResponse | None], result: Any = None) -> list[Any]:
    try:
        asked = steps.send(result)
        while True:
            asked = steps.send(asked() if asked is not None else None)
    except StopIteration as end:
        return list(end.value.responses[0].partition_responses)


def plane_with(config: LogConfig = ROOMY, partitions: int = 1) -> DataPlane:
    plane = DataPlane(config)
    plane.create("t", partitions)
    return plane


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_no_more_is_decompressed_between_two_turns_than_a_turns_worth(
    monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    limits: list[int] = []

    def noting(codec: int, payload: Any, size_max: int) -> bytes:
        limits.append(size_max)
        return decompress(codec, payload, size_max)

    monkeypatch.setattr(validation, "decompress", noting)
    plane = plane_with(partitions=3)
    steps = begun(plane, *[bomb(spec=LARGE._replace(codec=codec))] * 3)
    result: Any = None
    for _ in range(3):
        asked = steps.send(result)
        assert asked is not None
        assert max(limits) <= BYTES_PER_TURN
        result = asked()
        limits.clear()
    answers = finish(steps, result)
    assert [one.error_code for one in answers] == [0, 0, 0]


def test_what_is_small_is_stored_at_once() -> None:
    small = bytes(build_batch([(b"k", bytes(1000))], LARGE))
    with pytest.raises(StopIteration) as end:
        next(begun(plane_with(), small))
    assert end.value.value.responses[0].partition_responses[0].error_code == 0


def test_many_small_batches_let_others_have_their_turn() -> None:
    count = 2 * BYTES_PER_TURN // BATCH_COST_BYTES
    steps = begun(plane_with(), *[bytes(batch_of(b"x"))] * count)
    turns = 0
    try:
        while next(steps) is None:
            turns += 1
    except StopIteration:
        pass
    assert turns >= 2


def test_a_topic_deleted_meanwhile_refuses_the_batch() -> None:
    plane = plane_with()
    steps = begun(plane, bomb())
    asked = next(steps)
    assert asked is not None
    result = asked()
    plane.delete("t")
    (answer,) = finish(steps, result)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_settings_changed_meanwhile_are_kept_to() -> None:
    """Checked for one configuration, stored under another: the batch is as the other asks."""
    stamping = LogConfig(
        max_message_bytes=100_000_000, timestamp_type=TimestampType.LOG_APPEND_TIME
    )
    for before, after in ((stamping, ROOMY), (ROOMY, stamping)):
        plane = plane_with(before)
        steps = begun(plane, bomb())
        asked = next(steps)
        assert asked is not None
        result = asked()
        plane.settings.config = after
        plane.apply(ImageChange(reconfigured=[plane.controller.image.topics["t"]]))
        plane.clock.advance(5_000)
        (answer,) = finish(steps, result)
        assert answer.error_code == 0
        is_stamped = after is stamping
        assert (answer.log_append_time_ms >= 0) == is_stamped
        (record,) = read_all(plane.leader("t").log)
        assert record.timestamp_ms == (NOW + 5_000 if is_stamped else NOW)


def test_wrong_records_of_a_large_batch_are_named() -> None:
    plane = plane_with(LogConfig(max_message_bytes=10**8, timestamp_before_max_ms=1000))
    stamps = [NOW, NOW - 5_000, NOW]
    pairs = [(b"k", bytes(BYTES_PER_TURN))] * 3
    wrong = bytes(build_batch(pairs, BatchSpec(codec=Codec.ZSTD), timestamps=stamps))
    (answer,) = finish(begun(plane, wrong))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert [one.batch_index for one in answer.record_errors] == [1]


def test_of_a_batch_of_very_many_records_none_is_named() -> None:
    plane = plane_with(LogConfig(max_message_bytes=10**8, timestamp_before_max_ms=1000))
    pairs = [(None, None)] * 100_001
    stamps = [NOW - 5_000] * len(pairs)
    wrong = bytes(build_batch(pairs, BatchSpec(codec=Codec.ZSTD), timestamps=stamps))
    (answer,) = finish(begun(plane, wrong))
    assert answer.error_code == ErrorCode.INVALID_TIMESTAMP
    assert answer.record_errors == []


def test_what_was_checked_counts_only_for_the_settings_it_was_checked_for() -> None:
    plane = plane_with()
    log = plane.leader("t").log
    checked = validation.check(bomb(100), LogConfig(), now_ms=NOW, origin=Origin.CLIENT)
    assert checked.prepared is not None
    wrong = checked._replace(prepared=None, error=None)
    log.append_as_leader(wrong, leader_epoch=LeaderEpoch(0))  # of other settings: checked anew
    assert len(read_all(log)) == 1
