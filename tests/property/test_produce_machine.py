"""The producer's machine against partitions that check it as brokers do, under random faults.

Connections break with requests and answers on them, brokers answer with errors before and after
they stored, leaders move, requests of dead connections arrive late. What is checked: no record is
in a log twice; the records of a partition stand in the order in which they were written; what was
acknowledged is there, at the offset that was told; what was refused is not; every batch ends, by
its deadline.
"""

import os
from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.client.sim_partition import SimPartition, encoded, values_of
from millstream.client.produce.answers import Answer
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

PARTITIONS = 3
LEADERS = 2
DELIVERY_S = 30.0
LOST = ConnectionLost("sim", "cut", may_have_been_processed=True)
NOT_STORED = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.INVALID_RECORD,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)
PERHAPS_STORED = (
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.UNKNOWN_SERVER_ERROR,
)


@dataclass
class Request:
    batches: list[Batch]
    bytes_of: list[bytes]
    """As they were sent: what the batches hold later is another matter."""


@dataclass
class Connection:
    """One to a leader; requests and answers keep their order."""

    leader: int
    number: int
    requests: deque[Request] = field(default_factory=deque)
    answers: deque[tuple[Request, list[Answer]]] = field(default_factory=deque)


class World:
    """One run."""

    def __init__(self, seed: int) -> None:
        self.randomness = SeededRandomness(seed)
        is_small = self.randomness.chance(0.3)
        self.logs = [SimPartition(bytes_max=120 if is_small else 2**31) for _ in range(PARTITIONS)]
        for log in self.logs:
            log.knows_unknown = self.randomness.chance(0.2)
        rules = Rules(
            delivery_timeout_s=DELIVERY_S,
            backoff=Backoff(initial_s=0.1, max_s=1.0),
            in_flight_max=5,
            request_bytes_max=self.randomness.choice([200, 2**20]),
            batch_options=BatchOptions(),
        )
        self.machine = ProduceMachine(rules, self.randomness.fork("machine"))
        self.now_s = 0.0
        self.leaders = [index % LEADERS for index in range(PARTITIONS)]
        self.believed = list(self.leaders)
        self.connections: dict[int, Connection] = {}
        self.late: list[tuple[float, Request]] = []
        self.ids = 0
        # Near the end of the epochs a new id has to be asked for now and then.
        self.first_epoch = self.randomness.choice([0, 2**15 - 1, 2**15 - 4])
        self.written = 0
        self.batches: list[tuple[Batch, list[int]]] = []
        self.started_s: dict[int, float] = {}
        self.faults = self.randomness.choice([0.0, 0.1, 0.3])

    # -- steps

    def append(self) -> None:
        made = []
        for _ in range(self.randomness.integer(1, 5)):
            rows = self.randomness.integer(1, 5)
            values = list(range(self.written, self.written + rows))
            self.written += rows
            to = TopicPartition("t", self.randomness.integer(0, PARTITIONS))
            made.append(Batch(to, encoded(values), rows, Origin(Source((1,), (0,)), range(rows))))
            self.batches.append((made[-1], values))
        self.machine.append(made, self.now_s)

    def pump(self) -> None:
        machine = self.machine
        if machine.identity_wanted:
            self.ids += 1
            machine.identified(Identity(ProducerId(self.ids), ProducerEpoch(self.first_epoch)))
        for leader in range(LEADERS):
            connection = self.connections.setdefault(leader, Connection(leader, 0))
            while True:
                wanted = [
                    one
                    for one in machine.sendable(self.now_s)
                    if self.believed[one.partition] == leader
                ]
                taken = machine.take(wanted, (leader, connection.number), self.now_s)
                if not taken:
                    break
                assert len({one.partition for one in taken}) == len(taken)
                sent = Request(taken, [bytes(one.data) for one in taken])
                connection.requests.append(sent)

    def serve(self) -> None:
        connection = self.connections.get(self.randomness.integer(0, LEADERS))
        if connection is None or not connection.requests:
            return
        request = connection.requests.popleft()
        answers = [
            self._store(batch.partition.partition, data, connection.leader)
            for batch, data in zip(request.batches, request.bytes_of, strict=True)
        ]
        connection.answers.append((request, answers))

    def _store(self, index: int, data: bytes, leader: int) -> Answer:
        if self.leaders[index] != leader:
            return Answer(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.randomness.chance(self.faults):
            return Answer(self.randomness.choice(NOT_STORED))
        code, offset = self.logs[index].append(data)
        if self.randomness.chance(self.faults) and code is ErrorCode.NONE:
            return Answer(self.randomness.choice(PERHAPS_STORED))
        return Answer(code, Offset(offset))

    def answer(self) -> None:
        leader = self.randomness.integer(0, LEADERS)
        connection = self.connections.get(leader)
        if connection is None or not connection.answers:
            return
        request, answers = connection.answers.popleft()
        self._tell(connection, request, answers)

    def _tell(self, connection: Connection, request: Request, answers: list[Answer]) -> None:
        self.machine.request_ended((connection.leader, connection.number))
        for batch, answer in zip(request.batches, answers, strict=True):
            self.machine.answered(batch, answer, self.now_s)
            if answer.failure is ErrorCode.NOT_LEADER_OR_FOLLOWER:
                index = batch.partition.partition
                self.believed[index] = self.leaders[index]

    def cut(self) -> None:
        leader = self.randomness.integer(0, LEADERS)
        connection = self.connections.pop(leader, None)
        if connection is None:
            return
        self.connections[leader] = Connection(leader, connection.number + 1)
        if self.randomness.chance(0.5):
            self.late += [(self.now_s, one) for one in connection.requests]
        for request, _ in list(connection.answers):
            self._tell(connection, request, [Answer(LOST)] * len(request.batches))
        for request in connection.requests:
            self._tell(connection, request, [Answer(LOST)] * len(request.batches))

    def serve_late(self) -> None:
        """The first request of a dead connection arrives after all; the next ones after it."""
        if self.late:
            _, request = self.late.pop(0)
            for batch, data in zip(request.batches, request.bytes_of, strict=True):
                self.logs[batch.partition.partition].append(data)

    def forget(self) -> None:
        """A broker that crashed: Kafka's snapshots keep a producer's last batch alone."""
        for known in self.logs[self.randomness.integer(0, PARTITIONS)].producers.values():
            known.batches = known.batches[-1:]

    def move(self) -> None:
        index = self.randomness.integer(0, PARTITIONS)
        self.leaders[index] = self.randomness.integer(0, LEADERS)

    def learn(self) -> None:
        index = self.randomness.integer(0, PARTITIONS)
        self.believed[index] = self.leaders[index]

    def wait(self) -> None:
        until_s = self.now_s + self.randomness.choice([0.05, 0.3, 2.0, 11.0])
        while self.late and self.late[0][0] + LINGERING_S <= until_s:
            self.serve_late()
        self.now_s = until_s
        self.machine.expire(self.now_s)
        for batch, _ in self.batches:
            assert batch.is_done or batch.deadline_s > self.now_s or self._was_split(batch)

    def _was_split(self, batch: Batch) -> bool:
        """Its parts live on in its place; they have its deadline."""
        return batch.row_count > 1 and self.logs[batch.partition.partition].bytes_max < 2**31

    # -- the run

    def run(self, steps: int) -> None:
        many = [self.pump, self.serve, self.answer, self.pump, self.serve, self.answer]
        rare = [self.append, self.append, self.wait, self.learn]
        faulty = [self.cut, self.serve_late, self.move, self.forget]
        for _ in range(steps):
            self.randomness.choice(many)()
            if self.randomness.chance(0.2):
                self.randomness.choice(rare)()
            if self.randomness.chance(self.faults / 2):
                self.randomness.choice(faulty)()
        self.heal()

    def heal(self) -> None:
        """Without faults everything ends."""
        self.faults = 0.0
        while self.late:
            self.serve_late()
        for _ in range(3000):
            if not self.machine.open_batches and not any(
                one.requests or one.answers for one in self.connections.values()
            ):
                return
            self.learn()
            self.pump()
            self.serve()
            self.answer()
            self.now_s += 0.02
        raise AssertionError(f"{self.machine.open_batches} batches never ended")

    def check(self) -> None:
        stored_records = 0
        for index, log in enumerate(self.logs):
            assert len(set(log.log)) == len(log.log), "a record is stored twice"
            assert log.log == sorted(log.log), "records are stored in another order"
            told = self.machine.delivered.get(TopicPartition("t", index))
            stored_records += told.records if told is not None else 0
        for batch, values in self.batches:
            stored = self.logs[batch.partition.partition].log
            there = [value for value in values if value in stored]
            if batch.is_done and batch.error is None:
                assert there == values, "an acknowledged record is lost"
                if batch.offset >= 0:  # else no broker could tell it any more
                    assert stored[batch.offset : batch.offset + len(values)] == values
            elif batch.is_done:
                assert not there or _leaves_open(batch), "a refused record is stored"
        total = sum(len(values) for _, values in self.batches)
        assert stored_records + self.machine.undelivered_records == total
        assert self.machine.open_bytes == 0


def _leaves_open(batch: Batch) -> bool:
    """What a user can tell from the error."""
    error = batch.error
    if isinstance(error, OutcomeOpen):
        return True
    is_told = error is not None and "may have stored" in str(error)
    return is_told or (error is not None and error.code is ErrorCode.UNKNOWN_SERVER_ERROR)


def play(seed: int, steps: int) -> World:
    world = World(seed)
    try:
        world.run(steps)
        world.check()
    except BaseException as error:
        error.add_note(f"replay: play({seed}, {steps})")
        raise
    return world


@settings(max_examples=int(os.environ.get("MACHINE_EXAMPLES", "150")), deadline=None)
@given(seed=st.integers(0, 2**40), steps=st.integers(1, 400))
def test_every_record_once_and_in_order(seed: int, steps: int) -> None:
    play(seed, steps)


@pytest.mark.parametrize("seed", range(5))
def test_much_is_stored_despite_the_faults(seed: int) -> None:
    """The property says something only if records are stored while faults happen."""
    world = play(seed, 1500)
    assert sum(len(log.log) for log in world.logs) > 100


def test_without_faults_everything_is_acknowledged() -> None:
    world = World(7)
    world.faults = 0.0
    world.run(800)
    world.check()
    assert not world.machine.errors
    for index, log in enumerate(world.logs):
        told = world.machine.delivered[TopicPartition("t", index)]
        assert (told.records, told.first_offset) == (len(log.log), 0)
        assert told.last_offset == len(log.log) - 1
    assert sorted(values_of(encoded([3, 1]))) == [1, 3]
