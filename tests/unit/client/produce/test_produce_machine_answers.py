"""What single answers mean to the producer's machine; `tests/property` has the long stories."""

import pytest

from kits.client.sim_partition import encoded, values_of
from millstream.client.errors import NotAuthorized, RequestRefused
from millstream.client.produce.answers import Answer, Verdict
from millstream.client.produce.batches import Batch, Identity, Origin, Source
from millstream.client.produce.errors import OutcomeOpen
from millstream.client.produce.machine import ProduceMachine, Rules
from millstream.client.produce.partition_queue import LINGERING_S
from millstream.kernels.columns import BatchOptions
from millstream.model.ids import Offset, ProducerEpoch, ProducerId, TopicPartition
from millstream.rpc.backoff import Backoff
from millstream.rpc.errors import ConnectionLost
from millstream.runtime.randomness import SeededRandomness
from millstream.wire.errors import ErrorCode

HERE = TopicPartition("t", 0)
LOST = ConnectionLost("sim", "cut", may_have_been_processed=True)
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class Bench:
    """A machine with one partition, and its clock."""

    def __init__(self, **rules: object) -> None:
        options: dict[str, object] = {
            "delivery_timeout_s": 100.0,
            "backoff": Backoff(initial_s=0.1, max_s=0.1, jitter=0.0),
            "in_flight_max": 5,
            "request_bytes_max": 2**20,
            "batch_options": BatchOptions(),
        }
        self.machine = ProduceMachine(Rules(**{**options, **rules}), SeededRandomness(1))  # type: ignore[arg-type]
        self.machine.identified(Identity(ProducerId(7), ProducerEpoch(0)))
        self.now_s = 0.0
        self.written = 0

    def append(self, rows: int = 1) -> Batch:
        values = list(range(self.written, self.written + rows))
        self.written += rows
        batch = Batch(HERE, encoded(values), rows, Origin(Source((1,), (0,)), range(rows)))
        self.machine.append([batch], self.now_s)
        return batch

    def send(self) -> list[Batch]:
        return self.machine.take([HERE], "broker", self.now_s)

    def answer(self, batch: Batch, failure: ErrorCode | Exception, offset: int = -1) -> Verdict:
        self.machine.request_ended("broker")
        return self.machine.answered(batch, Answer(failure, Offset(offset)), self.now_s)

    def stored(self, rows: int = 1) -> None:
        """A first batch, so that the broker is known to check sequences."""
        batch = self.append(rows)
        assert self.send() == [batch]
        self.answer(batch, ErrorCode.NONE, 0)

    def state(self, batch: Batch) -> tuple[int, int, int]:
        return (*batch.identity, batch.sequence)


def test_a_repetition_that_the_broker_knows_is_stored() -> None:
    bench = Bench()
    batch = bench.append(3)
    bench.send()
    assert bench.answer(batch, ErrorCode.DUPLICATE_SEQUENCE_NUMBER) is Verdict.STORED
    assert (batch.is_done, batch.error) == (True, None)
    assert bench.machine.delivered[HERE] == (3, -1, -1)


def test_sequences_count_records_and_wrap() -> None:
    bench = Bench()
    bench.stored(3)
    queue = bench.machine._resting[HERE]
    queue.next_sequence = type(queue.next_sequence)(2**31 - 2)
    first, second = bench.append(4), bench.append(1)
    assert bench.send() + bench.send() == [first, second]
    assert (first.sequence, second.sequence) == (2**31 - 2, 2)


def test_only_one_is_under_way_until_the_broker_has_stored_one() -> None:
    bench = Bench()
    first, second = bench.append(), bench.append()
    assert bench.send() == [first]
    assert bench.send() == []
    bench.answer(first, ErrorCode.NONE, 0)
    assert bench.send() == [second]


def test_five_are_under_way_and_not_six() -> None:
    bench = Bench(in_flight_max=9)
    bench.stored()
    batches = [bench.append() for _ in range(7)]
    assert [bench.send() for _ in range(6)] == [[one] for one in batches[:5]] + [[]]
    bench.answer(batches[1], ErrorCode.NONE, 2)
    assert bench.send() == [], "the first could not be told from a gap any more"
    bench.answer(batches[0], ErrorCode.NONE, 1)
    assert bench.send() == [batches[5]]


def test_a_gap_behind_something_open_closes_by_itself() -> None:
    bench = Bench()
    bench.stored()
    first, second = bench.append(), bench.append()
    bench.send(), bench.send()
    bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS)
    bench.answer(second, OUT_OF_ORDER)
    bench.now_s += 1
    assert bench.send() == [first]
    assert bench.send() == [second]
    assert (bench.state(first), bench.state(second)) == ((7, 0, 1), (7, 0, 2))


def test_a_gap_for_good_is_left_behind_by_an_epoch() -> None:
    bench = Bench()
    bench.stored()
    batch, following = bench.append(2), bench.append()
    bench.send(), bench.send()
    bench.answer(batch, OUT_OF_ORDER)
    bench.now_s += 1
    assert bench.send() == [], "renumbered while something is under way"
    bench.answer(following, OUT_OF_ORDER)
    bench.now_s += 1
    assert bench.send() == [batch]
    assert bench.state(batch) == (7, 1, 0)
    assert values_of(batch.data) == [1, 2], "its checksum, too"
    bench.answer(batch, ErrorCode.NONE, 1)
    bench.send()
    assert bench.state(following) == (7, 1, 2)


def test_a_gap_is_not_believed_while_a_request_may_linger() -> None:
    bench = Bench()
    bench.stored()
    batch = bench.append()
    bench.send()
    bench.answer(batch, LOST)
    bench.now_s += 1
    assert bench.send() == [batch]
    bench.answer(batch, OUT_OF_ORDER)
    bench.now_s += 1
    assert bench.send() == []
    bench.now_s += LINGERING_S
    assert bench.send() == [batch]
    assert bench.state(batch) == (7, 0, 1), "renumbered although it may be stored"
    bench.answer(batch, OUT_OF_ORDER)
    bench.now_s += 1
    bench.send()
    assert bench.state(batch) == (7, 1, 0)


def test_what_was_lost_keeps_its_sequence_when_something_before_it_expires() -> None:
    bench = Bench(delivery_timeout_s=10.0)
    bench.stored()
    first = bench.append()
    bench.send()
    bench.answer(first, LOST)
    bench.now_s += 9
    second = bench.append()
    bench.send()
    bench.machine.request_ended("broker")
    bench.machine.answered(first, Answer(LOST), bench.now_s)
    bench.now_s += 2
    bench.machine.expire(bench.now_s)
    assert isinstance(first.error, OutcomeOpen)
    assert bench.send() == [second]
    assert bench.state(second) == (7, 0, 2)


def test_what_is_missing_before_something_stored_is_stored() -> None:
    """A broker that remembers less than five cannot make us write a record twice."""
    bench = Bench()
    bench.stored()
    first, second = bench.append(), bench.append()
    bench.send(), bench.send()
    bench.answer(first, ErrorCode.REQUEST_TIMED_OUT)
    bench.answer(second, ErrorCode.NONE, 2)
    bench.now_s += 1
    assert bench.send() == [first]
    assert bench.answer(first, OUT_OF_ORDER) is Verdict.STORED
    assert bench.machine.delivered[HERE].records == 3


def test_a_broker_that_remembers_only_the_last_is_asked_for_the_last() -> None:
    """As Kafka after a crash: the others get the answer of a gap, and are stored all the same."""
    bench = Bench()
    bench.stored()
    batches = [bench.append() for _ in range(3)]
    for _ in batches:
        bench.send()
    for batch in batches:
        bench.answer(batch, LOST)
    bench.now_s += LINGERING_S
    assert bench.send() == batches[:1]
    bench.answer(batches[0], OUT_OF_ORDER)
    bench.now_s += 1
    assert bench.send() == batches[1:2]
    bench.answer(batches[1], OUT_OF_ORDER)
    bench.now_s += 1
    assert bench.send() == batches[2:]
    bench.answer(batches[2], ErrorCode.NONE, 3)
    for batch in batches[:2]:
        assert bench.send() == [batch]
        assert bench.answer(batch, OUT_OF_ORDER) is Verdict.STORED
    assert bench.machine.delivered[HERE].records == 4


def test_what_nobody_can_tell_is_not_written_again() -> None:
    """The batch that would have proved that it is stored was given up, and may be stored."""
    bench = Bench()
    bench.stored()
    first, second = bench.append(), bench.append()
    bench.send(), bench.send()
    bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    bench.answer(second, ErrorCode.UNKNOWN_SERVER_ERROR)
    bench.now_s += 1
    assert bench.send() == [first]
    bench.answer(first, OUT_OF_ORDER)
    assert isinstance(first.error, OutcomeOpen)
    assert "may still have been stored" in str(first.error)


def test_a_gap_that_one_sees_behind_another_that_expires_is_seen_again() -> None:
    bench = Bench(delivery_timeout_s=10.0)
    bench.stored()
    first = bench.append()
    bench.now_s += 5
    second = bench.append()
    bench.send(), bench.send()
    bench.answer(first, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    bench.answer(second, OUT_OF_ORDER)
    bench.now_s += 6
    bench.machine.expire(bench.now_s)
    assert isinstance(first.error, OutcomeOpen)
    assert bench.send() == [second]
    bench.answer(second, OUT_OF_ORDER)
    bench.now_s += 1
    bench.send()
    assert bench.state(second) == (7, 1, 0)


def test_an_answer_after_the_deadline_changes_nothing_that_was_told() -> None:
    bench = Bench(delivery_timeout_s=10.0)
    bench.stored()
    batch = bench.append()
    bench.send()
    bench.now_s += 10
    bench.machine.expire(bench.now_s)
    assert isinstance(batch.error, OutcomeOpen)
    bench.answer(batch, ErrorCode.NONE, 1)
    assert bench.machine.delivered[HERE].records == 1
    assert (len(bench.machine.errors), bench.machine.undelivered_records) == (1, 1)
    assert (bench.machine.open_batches, bench.machine.open_bytes) == (0, 0)
    following = bench.append()
    bench.send()
    assert bench.state(following) == (7, 0, 2)


def test_parts_of_a_split_batch_keep_the_sequences_of_what_follows() -> None:
    bench = Bench()
    bench.stored()
    large, following = bench.append(10), bench.append()
    bench.send(), bench.send()
    assert bench.answer(large, ErrorCode.MESSAGE_TOO_LARGE) is Verdict.SPLIT
    bench.answer(following, OUT_OF_ORDER)
    bench.now_s += 1
    found, sequence = [], 1
    while batches := bench.send():
        (part,) = batches
        assert bench.state(part) == (7, 0, sequence)
        sequence += part.row_count
        found += values_of(part.data)
        bench.answer(part, ErrorCode.NONE, part.sequence)
    assert found == list(range(1, 12))
    assert bench.machine.open_bytes == 0


@pytest.mark.parametrize(
    ("code", "error", "is_fatal"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, NotAuthorized, False),
        (ErrorCode.INVALID_RECORD, RequestRefused, False),
        (ErrorCode.INVALID_PRODUCER_EPOCH, RequestRefused, False),
        (ErrorCode.PRODUCER_FENCED, RequestRefused, True),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, NotAuthorized, True),
    ],
)
def test_refusals(code: ErrorCode, error: type[Exception], is_fatal: bool) -> None:
    bench = Bench()
    bench.stored()
    batch, following = bench.append(), bench.append()
    bench.send()
    bench.answer(batch, code)
    assert isinstance(batch.error, error)
    assert following.is_done is is_fatal
    assert (bench.machine.fatal is batch.error) is is_fatal
    if not is_fatal:
        assert bench.send() == [following]
        assert bench.state(following) == (7, 1, 0), "the sequence of a refused batch stays empty"


def test_after_the_last_epoch_a_new_id_is_asked_for() -> None:
    bench = Bench()
    bench.machine.identified(Identity(ProducerId(8), ProducerEpoch(2**15 - 1)))
    bench.stored()
    batch = bench.append()
    bench.send()
    bench.answer(batch, OUT_OF_ORDER)
    bench.now_s += 1
    assert bench.send() == []
    assert bench.machine.identity_wanted
    bench.machine.identified(Identity(ProducerId(9), ProducerEpoch(0)))
    assert bench.send() == [batch]
    assert bench.state(batch) == (9, 0, 0)


def test_all_that_is_under_way_goes_to_one_place() -> None:
    bench = Bench()
    bench.stored()
    first, second = bench.append(), bench.append()
    assert bench.send() == [first]
    assert bench.machine.take([HERE], "other broker", 0.0) == []
    bench.answer(first, ErrorCode.NONE, 1)
    assert bench.machine.take([HERE], "other broker", 0.0) == [second]


def test_bytes_that_a_transport_may_hold_are_not_changed() -> None:
    bench = Bench()
    bench.stored()
    batch = bench.append()
    bench.send()
    sent = batch.data
    before = bytes(sent)
    bench.answer(batch, OUT_OF_ORDER)
    bench.now_s += 1
    bench.send()
    assert bytes(sent) == before
    assert bytes(batch.data) != before


def test_each_batch_ends_at_its_own_deadline() -> None:
    """Also one that came before the last look and was too young for it."""
    bench = Bench(delivery_timeout_s=10.0)
    ends = []
    for _ in range(3):
        ends.append((bench.append(), bench.now_s + 10))
        bench.now_s += 4
    while bench.now_s <= 20:
        bench.machine.expire(bench.now_s)
        assert [one.is_done for one, _ in ends] == [at_s <= bench.now_s for _, at_s in ends]
        bench.now_s += 0.5
    assert bench.machine.open_batches == 0
