"""A consumer that reads with fetch sessions sees every record once, in order, whatever happens.

Produces, limits, waits, lost answers, forgotten partitions and evicted sessions come in any order.
The consumer does what real ones do: it sends only the positions that changed.
"""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kits.broker.data_plane import DataPlane, Fetched
from kits.storage.log_stories import batch_of
from millstream.broker.fetch.sessions import EVICTION_MS, next_epoch
from millstream.storage.config import LogConfig
from millstream.wire.errors import ErrorCode
from millstream.wire.messages.fetch import FetchResponse

PARTITIONS = 4
SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
)


class Consumer:
    """Keeps its positions, and what the broker's session knows of them."""

    def __init__(self, plane: DataPlane, version: int) -> None:
        self.plane, self.version = plane, version
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.paused: set[int] = set()
        self.seen: dict[int, list[bytes | None]] = {index: [] for index in range(PARTITIONS)}
        self.restart()
        self.pending: int | None = None

    def restart(self) -> None:
        """Forget the session; the next fetch names everything."""
        self.session_id = self.epoch = 0
        self.told: dict[int, int] = {}

    def send(self, **fields: Any) -> None:
        wanted = {i: at for i, at in self.positions.items() if i not in self.paused}
        forgotten = [("t", index) for index in self.told if index not in wanted]
        changed = [("t", i, at) for i, at in wanted.items() if self.told.get(i) != at]
        self.told = wanted
        if self.epoch == 0:
            forgotten = []
        request = self.plane.fetch_request(
            changed,
            version=self.version,
            forgotten=forgotten,
            session_id=self.session_id,
            session_epoch=self.epoch,
            **fields,
        )
        self.pending = self.plane.send(request, self.version)

    def take(self, *, is_lost: bool = False) -> None:
        """Handle the answer if it has come."""
        assert self.pending is not None
        response = self.plane.answer(self.pending, FetchResponse, self.version)
        if response is None:
            return
        self.pending = None
        if is_lost:
            self.restart()
            return
        fetched = Fetched(self.plane, response)
        if fetched.error in SESSION_ERRORS:
            self.restart()
            return
        assert fetched.error == 0
        assert set(fetched.errors) <= {0}
        self.session_id = fetched.session_id
        self.epoch = next_epoch(self.epoch)
        if not fetched.session_id:
            self.restart()
        for index in range(PARTITIONS):
            self._read(fetched, index)

    def _read(self, fetched: Fetched, index: int) -> None:
        for record in fetched.records("t", index):
            if record.offset >= self.positions[index]:
                self.seen[index].append(record.value)
                self.positions[index] = record.offset + 1


partition = st.integers(0, PARTITIONS - 1)
steps = st.one_of(
    st.tuples(st.just("produce"), partition, st.integers(1, 4)),
    st.tuples(st.just("send"), st.sampled_from([0, 30]), st.sampled_from([1, 200, 400])),
    st.tuples(st.just("take"), st.booleans(), st.booleans()),
    st.tuples(st.just("pause"), partition, st.just(0)),
    st.tuples(st.just("time"), st.sampled_from([1, 30, EVICTION_MS + 1]), st.just(0)),
    st.tuples(st.just("rival"), st.integers(1, PARTITIONS), st.just(0)),
)


@given(
    st.lists(steps, max_size=60),
    st.sampled_from([7, 11, 12, 13, 18]),
    st.sampled_from([60, 250, 10_000]),
    st.sampled_from([90, 10_000]),
)
@settings(max_examples=80, deadline=None)
def test_every_record_is_seen_once_and_in_order(
    story: list[tuple[str, int, int]], version: int, max_bytes: int, partition_max_bytes: int
) -> None:
    plane = DataPlane(LogConfig(segment_bytes=600, index_interval_bytes=100), slots_max=2)
    plane.create("t", PARTITIONS)
    consumer = Consumer(plane, version)
    produced: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    limits = {"max_bytes": max_bytes, "partition_max_bytes": partition_max_bytes}
    for number, (what, first, second) in enumerate(story):
        match what:
            case "produce":
                values = [b"%d.%d" % (number, each) for each in range(second)]
                produced[first] += values
                assert plane.produce("t", batch_of(*values), index=first).error_code == 0
            case "send" if consumer.pending is None:
                consumer.send(max_wait_ms=first, min_bytes=second, **limits)
            case "take" if consumer.pending is not None:
                consumer.take(is_lost=bool(first) and bool(second))
            case "pause" if consumer.pending is None:
                consumer.paused ^= {first}
            case "time":
                plane.clock.advance(first - 1)
                plane.timers.pass_time(1)
            case "rival":
                plane.fetch([("t", index, 0) for index in range(first)], session_epoch=0)
    _drain(plane, consumer, sum(map(len, produced.values())), limits)
    assert consumer.seen == produced


def _drain(plane: DataPlane, consumer: Consumer, total: int, limits: dict[str, int]) -> None:
    consumer.paused.clear()
    for _ in range(3 * total + 10):
        if consumer.pending is None:
            consumer.send(**limits)
        plane.timers.pass_time(40)
        consumer.take()
        assert consumer.pending is None, "a fetch must end when its time is up"
        if sum(map(len, consumer.seen.values())) == total:
            return
