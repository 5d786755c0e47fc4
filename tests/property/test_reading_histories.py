"""The machine and the decoder against model logs: any limits, any failures, any pace of the user.

Replay one history with `MILLSTREAM_SEED=n pytest tests/property/test_reading_histories.py`.
"""

import os
import random
from collections import deque
from uuid import UUID

import pytest

from kits.client.model_log import ModelLog, Seen, random_log
from millstream.client.fetch.chunks import Chunk, FetchLimits, ReadRange
from millstream.client.fetch.decoder import BatchShape, Decoder
from millstream.client.fetch.machine import FetchMachine, FetchRequestSpec
from millstream.client.fetch.python_rows import PythonDecoder
from millstream.model.ids import BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData

GIVEN = os.environ.get("MILLSTREAM_SEED")
SEEDS = [int(GIVEN)] if GIVEN else range(60)
TOPIC = TopicId(UUID(int=5))


class History:
    """One read of several partitions, led by two brokers."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.is_committed = rng.random() < 0.6
        self.logs: dict[TopicPartition, ModelLog] = {
            TopicPartition("t", at): random_log(rng) for at in range(rng.choice((1, 3)))
        }
        self.limits = FetchLimits(
            fetch_bytes_max=rng.choice((1, 700, 10**6)),
            partition_bytes_max=rng.choice((1, 300, 5000)),
            prefetch_bytes_max=rng.choice((1, 2000, 10**6)),
            fetch_bytes_min=1,
            wait_ms_max=1,
            is_committed=self.is_committed,
        )
        self.ranges = {name: self._range(name, log) for name, log in self.logs.items()}
        self.machine = FetchMachine(self.ranges.values(), self.limits)
        self.decoder = Decoder(
            BatchShape(columns=("offset", "value"), batch_bytes=rng.choice((1, 500, 10**6)),
                       batch_rows_max=rng.choice((1, 3, 1000)))
        )  # fmt: skip
        self.is_plain = seed % 2 == 1
        self.plain = PythonDecoder(with_headers=False, checks_crcs=True)
        self.under_way: list[FetchRequestSpec] = []
        self.waiting: deque[Chunk] = deque()
        self.found: dict[TopicPartition, list[Seen]] = {name: [] for name in self.logs}
        self.positions = {name: one.start for name, one in self.ranges.items()}
        self.largest = max(len(one.data) for log in self.logs.values() for one in log.batches)

    def _range(self, name: TopicPartition, log: ModelLog) -> ReadRange:
        end = log.stable_end if self.is_committed else log.end
        start, stop = sorted((self.rng.randrange(end + 1), self.rng.randrange(end + 1)))
        return ReadRange(name, Offset(start), Offset(stop), TOPIC)

    def step(self) -> None:
        rng = self.rng
        choice = rng.random()
        if choice < 0.3 and self.machine.without_leader():
            name = rng.choice(self.machine.without_leader())
            self.machine.set_leader(
                name, BrokerId(rng.randrange(2)), leader_epoch=LeaderEpoch(0), topic_id=TOPIC
            )
        elif choice < 0.6:
            for broker in self.machine.idle_brokers():
                request = self.machine.next_request(broker)
                if request is not None:
                    self.under_way.append(request)
        elif choice < 0.85 and self.under_way:
            self._answer(self.under_way.pop(rng.randrange(len(self.under_way))))
        elif self.waiting:
            self._use(self.waiting.popleft())
        self._check()

    def _answer(self, request: FetchRequestSpec) -> None:
        if self.rng.random() < 0.1:
            self.machine.on_lost(request)
            return
        result = self.machine.on_response(request, self._response(request))
        assert not result.errors
        for chunk in result.chunks:
            assert chunk.start == self.positions[chunk.partition], "a gap or a repeat"
            self.positions[chunk.partition] = chunk.stop
        self.waiting.extend(result.chunks)

    def _response(self, request: FetchRequestSpec) -> FetchResponse:
        parts: list[PartitionData] = []
        room, is_first = request.bytes_max, True
        for one in request.partitions:
            if self.rng.random() < 0.1:
                code = self.rng.choice(
                    (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_ID)
                )
                parts.append(
                    PartitionData(partition_index=one.partition.partition, error_code=code)
                )
                continue
            log = self.logs[one.partition]
            is_committed = self.is_committed and not request.is_peek
            records = log.read(
                one.offset, min(room, self.limits.partition_bytes_max),
                until=log.stable_end if is_committed else log.end, at_least_one=is_first,
            )  # fmt: skip
            is_first = is_first and not records
            room = max(0, room - len(records))
            aborted = log.aborted_in(one.offset, log.end) if is_committed else None
            parts.append(
                PartitionData(
                    partition_index=one.partition.partition,
                    records=records,
                    last_stable_offset=log.stable_end,
                    aborted_transactions=aborted,
                )
            )
        self.rng.shuffle(parts)
        topic = FetchableTopicResponse(topic_id=TOPIC, partitions=parts)
        return FetchResponse.decode(FetchResponse(responses=[topic]).encode(18), 18)

    def _use(self, chunk: Chunk) -> None:
        """Columns, or plain rows: what is seen is the same."""
        if self.is_plain:
            for rows in self.plain.batches(chunk):
                self.found[rows.partition] += map(Seen, rows.offsets(), rows.values())
                assert rows.offsets()[-1] < rows.next_offset <= chunk.stop
            self.machine.release(chunk.charge_bytes)
            return
        for one in self.decoder.batches(chunk):
            offsets, values = (one.batch.column(at).to_pylist() for at in range(2))
            self.found[one.partition] += map(Seen, offsets, values)
            assert offsets[-1] < one.next_offset <= chunk.stop
        self.machine.release(chunk.charge_bytes)

    def _check(self) -> None:
        """Held and reserved stay below the bound, apart from one batch that comes in any case."""
        total = self.machine.held_bytes + self.machine.reserved_bytes
        assert total <= self.limits.prefetch_bytes_max + 2 * self.largest

    @property
    def is_over(self) -> bool:
        return self.machine.is_done and not self.waiting


@pytest.mark.parametrize("seed", SEEDS)
def test_exactly_what_may_be_seen_comes_in_order(seed: int) -> None:
    history = History(seed)
    for _ in range(20_000):
        if history.is_over:
            break
        history.step()
    assert history.is_over, f"no end: {history.machine.pending()}"
    for name, wanted in history.ranges.items():
        assert wanted.end is not None
        expected = history.logs[name].visible(
            wanted.start, wanted.end, is_committed=history.is_committed
        )
        assert history.found[name] == expected
        assert history.positions[name] == max(wanted.start, wanted.end)
    assert history.machine.held_bytes == history.machine.reserved_bytes == 0 or history.under_way
