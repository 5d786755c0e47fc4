"""What the machine asks for and what it makes of answers, good ones and impossible ones."""

from typing import Any
from uuid import UUID

import pytest

from kits.kernels.column_batches import Record, batch_of
from millstream.client.errors import AnswerUnreadable, ClientError, RecordsUnreadable
from millstream.client.fetch.chunks import FetchLimits, ReadRange
from millstream.client.fetch.machine import FetchMachine, FetchRequestSpec, FetchResult
from millstream.model.ids import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

TOPIC = TopicId(UUID(int=9))
ONE, TWO = BrokerId(1), BrokerId(2)


def limits(**changes: Any) -> FetchLimits:
    named = {
        "fetch_bytes_max": 10_000,
        "partition_bytes_max": 1000,
        "prefetch_bytes_max": 4000,
        "fetch_bytes_min": 1,
        "wait_ms_max": 500,
        "is_committed": False,
    }
    return FetchLimits(**named | changes)


def machine(*leaders: BrokerId, end: int | None = 100, **changes: Any) -> FetchMachine:
    """A partition for each leader."""
    places = [TopicPartition("t", index) for index in range(len(leaders))]
    ranges = [ReadRange(one, Offset(0), None if end is None else Offset(end)) for one in places]
    made = FetchMachine(ranges, limits(**changes))
    for place, leader in zip(places, leaders, strict=True):
        made.set_leader(place, leader, leader_epoch=LeaderEpoch(4), topic_id=TOPIC)
    return made


def batch(base: int, count: int = 10, size: int = 10, **fields: int) -> bytes:
    return batch_of([Record(b"k", bytes(size))] * count, base_offset=base, **fields)


def part(index: int = 0, records: bytes = b"", code: int = 0, **fields: Any) -> PartitionData:
    return PartitionData(partition_index=index, records=records, error_code=code, **fields)


def answer(
    made: FetchMachine, request: FetchRequestSpec, *parts: PartitionData, **fields: Any
) -> FetchResult:
    topic = FetchableTopicResponse(topic_id=TOPIC, partitions=list(parts))
    return made.on_response(request, FetchResponse(responses=[topic], **fields))


def request(made: FetchMachine, broker: BrokerId = ONE) -> FetchRequestSpec:
    found = made.next_request(broker)
    assert found is not None
    return found


def test_it_goes_on_behind_the_last_whole_batch_with_its_epoch() -> None:
    made = machine(ONE)
    records = batch(0) + batch(15, leader_epoch=3) + batch(25)[:-1]
    found = answer(made, request(made), part(records=records))
    (chunk,) = found.chunks
    assert (chunk.start, chunk.stop, found.errors) == (0, 25, [])
    (spec,) = request(made).partitions
    assert (spec.offset, spec.last_epoch, spec.leader_epoch) == (25, 3, 4)


def test_a_range_ends_inside_a_batch_and_in_front_of_one() -> None:
    for end, records in ((5, batch(0)), (50, batch(0) + batch(60))):
        made = machine(ONE, end=end)
        (chunk,) = answer(made, request(made), part(records=records)).chunks
        assert chunk.stop == end
        assert made.is_done
        assert made.next_request(ONE) is None


def test_one_request_at_a_time_for_each_broker_and_room_for_all() -> None:
    made = machine(ONE, TWO, ONE, prefetch_bytes_max=4000)
    first, second = request(made, ONE), request(made, TWO)
    assert [one.partition.partition for one in first.partitions] == [0, 2]
    assert made.next_request(ONE) is None
    assert (first.bytes_max, second.bytes_max) == (2000, 1000)
    assert made.reserved_bytes == 3000


def test_nothing_is_asked_for_until_there_is_room() -> None:
    made = machine(ONE, prefetch_bytes_max=2500)
    held = []
    while (spec := made.next_request(ONE)) is not None:
        at = spec.partitions[0].offset
        held += answer(made, spec, part(records=batch(at, size=80))).chunks
    assert made.held_bytes <= 2500
    assert made.held_bytes + 1000 > 2500
    made.release(held[0].charge_bytes)
    assert made.next_request(ONE) is not None


def test_the_memory_of_an_answer_is_free_with_its_last_chunk() -> None:
    made = machine(ONE, ONE)
    first, second = answer(
        made, request(made), part(0, batch(0)), part(1, batch(0, size=50))
    ).chunks
    assert first.charge_bytes == 0
    assert second.charge_bytes == made.held_bytes == len(first.records) + len(second.records)


def test_who_got_something_goes_to_the_end_of_the_line() -> None:
    made = machine(ONE, ONE, ONE)
    answer(made, request(made), part(0, batch(0)), part(1), part(2))
    assert [one.partition.partition for one in request(made).partitions] == [0, 1, 2]


def test_a_partition_that_was_refused_waits_for_a_leader() -> None:
    made = machine(ONE, ONE)
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    found = answer(made, request(made), part(0, code=code), part(1))
    assert [(one.partition.partition, one.code) for one in found.failures] == [(0, code)]
    assert made.without_leader() == [TopicPartition("t", 0)]
    assert [one.partition.partition for one in request(made).partitions] == [1]
    made = machine(ONE, ONE)
    made.on_lost(request(made))
    assert len(made.without_leader()) == 2
    assert made.next_request(ONE) is None


def test_an_error_of_the_whole_answer_is_one_of_every_partition() -> None:
    made = machine(ONE, ONE)
    found = answer(made, request(made), error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert len(found.failures) == 2


def test_who_is_throttled_gets_nothing_and_asks_again() -> None:
    made = machine(ONE)
    found = answer(made, request(made), throttle_time_ms=100)
    assert (found.errors, found.failures, found.chunks) == ([], [], [])
    assert request(made).partitions[0].offset == 0


@pytest.mark.parametrize(
    ("records", "kind", "chunks"),
    [
        (batch(0)[:-1], AnswerUnreadable, 0),
        (b"\0" * 70, RecordsUnreadable, 0),
        (batch(0) + batch(10, magic=1), RecordsUnreadable, 1),
        (batch(-20), RecordsUnreadable, 0),
    ],
)
def test_what_a_broker_cannot_mean_ends_the_read(
    records: bytes, kind: type[ClientError], chunks: int
) -> None:
    made = machine(ONE)
    found = answer(made, request(made), part(records=records))
    assert [type(one) for one in found.errors] == [kind]
    assert len(found.chunks) == chunks


def test_batches_that_end_before_the_offset_end_the_read() -> None:
    """They would be asked for again for ever."""
    made = machine(ONE)
    answer(made, request(made), part(records=batch(0)))
    found = answer(made, request(made), part(records=batch(0)))
    assert [type(one) for one in found.errors] == [AnswerUnreadable]


def test_a_partition_without_an_answer_ends_the_read() -> None:
    made = machine(ONE, ONE)
    found = answer(made, request(made), part(0))
    assert [type(one) for one in found.errors] == [AnswerUnreadable]


def test_a_gap_before_an_open_transaction_is_looked_into_once() -> None:
    made = machine(ONE, end=20, is_committed=True)
    answer(made, request(made), part(last_stable_offset=19))
    assert not request(made).is_peek, "the range is not stable yet"
    made = machine(ONE, end=20, is_committed=True)
    answer(made, request(made), part(last_stable_offset=20))
    peek = request(made)
    assert (peek.is_peek, peek.bytes_max) == (True, 1)
    found = answer(made, peek, part(records=batch(5), last_stable_offset=20))
    assert found.chunks == []
    assert not made.is_done, "there is something in the range"
    answer(made, request(made), part(last_stable_offset=20))
    (chunk,) = answer(made, request(made), part(records=batch(20), last_stable_offset=20)).chunks
    assert (chunk.start, chunk.stop, len(chunk.records)) == (0, 20, 0)
    assert made.is_done
