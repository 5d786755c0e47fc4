"""The coordinator's shell on a log that does what a test says, with a machine that is a script."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from millstream.groups.coordinator import GroupCoordinator, GroupDependencies
from millstream.groups.counts import Counts
from millstream.groups.records.entries import Entry, decode_batches, encode
from millstream.groups.records.keys import ConsumerGroupKey, OffsetKey
from millstream.groups.records.values import ConsumerGroupMetadataValue, OffsetCommitValue
from millstream.kernels.batches import LAST_OFFSET, RECORD_COUNT, ROW_FIELDS, walk
from millstream.model.errors import OperatingError
from millstream.model.ids import GroupId, LeaderEpoch, Offset, TopicId, TopicPartition
from millstream.runtime.scheduler import CooperativeScheduler
from millstream.shards.effects import Caller, Outbox, Reply, Write
from millstream.storage.log.log import ReadResult
from millstream.storage.log.reader import Isolation, ReadSlice
from millstream.storage.ports import AppendOutcome, LeadershipListener
from millstream.storage.producers.machine import Origin
from millstream.testing.sim import virtual_loop
from millstream.testing.sim.background import InlineBackground
from millstream.testing.sim.clock import ManualClock

NOW_MS = 1_700_000_000_000
TIMEOUT_MS = 5_000


def commit_of(group: str, offset: int, *, topic: str = "t", partition: int = 0) -> Entry:
    value = OffsetCommitValue(offset=offset, metadata="", commit_timestamp=NOW_MS)
    return Entry(OffsetKey(GroupId(group), topic, partition), value)


class FakeFile:
    """Counts its pins; what is read is in the slice already."""

    def __init__(self) -> None:
        self.pins = 0

    def pin(self) -> None:
        self.pins += 1

    def unpin(self) -> None:
        self.pins -= 1


class _Slice(ReadSlice):
    __slots__ = ("fails",)

    fails: OperatingError | None

    def read(self) -> bytes:
        if self.fails is not None:
            raise self.fails
        return self.raw or b""


class FakeLog:
    """A `PartitionLog` of batches in memory. The high watermark follows unless it is held."""

    def __init__(self, index: int = 0) -> None:
        self.partition = TopicPartition("__consumer_offsets", index)
        self.topic_id = cast("TopicId", None)
        self.leader_epoch = LeaderEpoch(0)
        self.batches: list[tuple[int, int, bytes]] = []
        """First offset, end and bytes of each."""
        self.log_start = Offset(0)
        self.log_end = Offset(0)
        self.high_watermark = Offset(0)
        self.is_held = False
        self.refuses: OperatingError | None = None
        self.read_fails: OperatingError | None = None
        self.size_max = 2**31
        self.too_large: Callable[[int], OperatingError] | None = None
        self.file = FakeFile()
        self.reads = 0
        self._listeners: list[LeadershipListener] = []

    @property
    def last_stable_offset(self) -> Offset:
        return self.high_watermark

    # -- as the log -----------------------------------------------------------------------

    def append_now(
        self, records: bytes | bytearray | memoryview, *, origin: Origin = Origin.COORDINATOR
    ) -> AppendOutcome:
        assert origin is Origin.COORDINATOR
        if self.refuses is not None:
            raise self.refuses
        if len(records) > self.size_max and self.too_large is not None:
            raise self.too_large(len(records))
        rows, _, _ = walk(records, 0, len(records), check_crc=True, size_max=2**31 - 1)
        count = rows[RECORD_COUNT - ROW_FIELDS]
        base = self.log_end
        raw = bytearray(records)
        raw[0:8] = int(base).to_bytes(8, "big")
        self.batches.append((base, base + count, bytes(raw)))
        self.log_end = Offset(base + count)
        if not self.is_held:
            self.advance()
        return AppendOutcome(base, Offset(self.log_end - 1))

    def append(self, *_: Any, **__: Any) -> None:
        raise AssertionError("the shell writes with append_now")

    def read(self, offset: Offset, *, size_max: int, isolation: Isolation) -> ReadResult:
        assert isolation is Isolation.LOG_END
        self.reads += 1
        raw = b""
        for first, end, batch in self.batches:
            if end > offset and (not raw or len(raw) + len(batch) <= size_max):
                raw += batch
                del first
        data = _Slice(cast("Any", self.file), 0, len(raw))
        data.raw, data.fails = raw, self.read_fails
        end = self.high_watermark
        return ReadResult(data, end, end, self.log_start, [])

    def watch_leadership(self, listener: LeadershipListener) -> None:
        self._listeners.append(listener)
        listener.leadership_gained(cast("Any", self), self.leader_epoch)

    # -- as the test ----------------------------------------------------------------------

    def advance(self, to: int | None = None) -> None:
        """Followers have it."""
        self.high_watermark = Offset(self.log_end if to is None else to)
        for one in list(self._listeners):
            one.high_watermark_moved(cast("Any", self))

    def lose(self) -> None:
        listeners, self._listeners = self._listeners, []
        for one in listeners:
            one.leadership_lost(cast("Any", self))

    def put(self, *entries: Entry) -> None:
        """As some coordinator did before."""
        self.append_now(encode(list(entries), now_ms=NOW_MS))


class FakeShard:
    """What a test says, and a book of what it was told."""

    def __init__(self, index: int, outbox: Outbox) -> None:
        self.index = index
        self.outbox = outbox
        self.calls: list[Any] = []
        self.applied: list[tuple[int, int]] = []
        """Log offset and committed offset of every entry that was read."""
        self.waiting: list[object] = []
        self.deadline_ms: int | None = None
        self.on_tick: Callable[[], None] = lambda: None
        self.written_callback: Callable[[Write], None] = lambda _: None
        self.expirations = 0
        self.counts = Counts()
        self.has_more = False

    skipped_count = 0

    def load(self, records: memoryview) -> None:
        for decoded in decode_batches(records):
            assert isinstance(decoded.what, Entry)
            value = decoded.what.value
            committed = value.offset if isinstance(value, OffsetCommitValue) else -1
            if not self.applied or decoded.offset > self.applied[-1][0]:
                self.applied.append((decoded.offset, committed))

    def on_appended(self, write: Write, last_offset: Offset, *, now_ms: int, wall_ms: int) -> None:
        del now_ms, wall_ms
        self.calls.append(("appended", int(last_offset), len(write.entries)))

    def on_refused(self, write: Write, error: OperatingError, *, now_ms: int) -> None:
        del write, now_ms
        self.calls.append(("refused", type(error).__name__))

    def on_written(self, write: Write, *, now_ms: int) -> None:
        del now_ms
        self.calls.append(("written", len(write.entries)))
        self.written_callback(write)

    def on_high_watermark(self, high_watermark: Offset) -> None:
        self.calls.append(("committed", int(high_watermark)))

    def on_loaded(self, *, now_ms: int, wall_ms: int) -> None:
        del now_ms, wall_ms
        self.calls.append("loaded")

    def unload(self) -> list[object]:
        self.calls.append("unloaded")
        return self.waiting

    def next_deadline_ms(self) -> int | None:
        return self.deadline_ms

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        del wall_ms
        self.calls.append(("tick", now_ms))
        self.deadline_ms = None
        self.on_tick()

    def expire(self, *, now_ms: int, wall_ms: int) -> bool:
        del now_ms, wall_ms
        self.expirations += 1
        return self.has_more

    def on_topics_changed(self, names: Iterable[str], *, now_ms: int, wall_ms: int) -> None:
        del now_ms, wall_ms
        self.calls.append(("topics", sorted(names)))

    def partitions_deleted(self, topics: Iterable[str]) -> None:
        self.calls.append(("deleted", sorted(topics)))


@dataclass
class FakeSettings:
    commit_timeout_ms: int = TIMEOUT_MS
    load_bytes_max: int = 2**20
    append_linger_ms: int = -1
    expire_interval_ms: int = 600_000


class RecordingSink:
    """Keeps what it is answered."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.then: Callable[[], None] = lambda: None

    def respond(self, response: Any) -> None:
        self.answers.append(response)
        self.then()

    @property
    def caller(self) -> Caller:
        return Caller(self, 0, "client", "/host")

    @property
    def outcomes(self) -> list[str]:
        """Answers, errors by the names of their types."""
        return [
            type(one).__name__ if isinstance(one, Exception) else str(one) for one in self.answers
        ]


@dataclass
class _Timer:
    due_s: float
    callback: Callable[..., None]
    arguments: tuple[Any, ...]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


@dataclass
class HandTimers:
    """Timers that ring when a test moves the clock."""

    clock: ManualClock
    timers: list[_Timer] = field(default_factory=list)

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s()

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> _Timer:
        timer = _Timer(self.clock.monotonic_s() + delay_s, callback, arguments)
        self.timers.append(timer)
        return timer

    def run_due(self, rounds_max: int = 100) -> int:
        """Ring what is due; how many."""
        rung = 0
        for _ in range(rounds_max):
            now_s = self.clock.monotonic_s() + 1e-9
            due = [one for one in self.timers if one.due_s <= now_s and not one.is_cancelled]
            if not due:
                return rung
            self.timers = [one for one in self.timers if one not in due and not one.is_cancelled]
            for one in due:
                if not one.is_cancelled:
                    rung += 1
                    one.callback(*one.arguments)
        raise AssertionError("a timer rings for ever")


class Bench:
    """A coordinator with everything in hand. Make it on a running loop."""

    def __init__(self, settings: FakeSettings | None = None) -> None:
        self.clock = ManualClock()
        self.timers = HandTimers(self.clock)
        self.settings = settings or FakeSettings()
        self.shards: list[FakeShard] = []
        """Every one that was made, in order."""
        self.groups = GroupCoordinator(
            GroupDependencies(
                clock=self.clock,
                timers=self.timers,
                scheduler=CooperativeScheduler(InlineBackground()),
                settings=self.settings,
                new_shard=cast("Any", self._new_shard),
                partition_of=lambda _: 0,
                awaited=lambda _: None,
                at_iteration_end=lambda work: self.timers.call_later(0, work),
            )
        )
        self.coordinator = self.groups.shards

    def _new_shard(self, index: int, outbox: Outbox) -> FakeShard:
        self.shards.append(FakeShard(index, outbox))
        return self.shards[-1]

    @property
    def shard(self) -> FakeShard:
        return self.shards[-1]

    def pass_ms(self, by_ms: int) -> None:
        self.clock.advance(by_ms)
        self.timers.run_due()

    def submit(
        self, *effects: Write | str, index: int = 0, is_gathered: bool = False
    ) -> RecordingSink:
        """A request that makes the machine leave these; a text is a reply at once. In a write the
        token None stands for who asks.
        """
        sink = RecordingSink()

        def decide(shard: Any, caller: Caller, *_: Any, **__: Any) -> None:
            for one in effects:
                if isinstance(one, str):
                    shard.outbox.reply(caller, one)
                else:
                    replies = tuple(
                        Reply(caller.token if reply.token is None else reply.token, reply.response)
                        for reply in one.replies
                    )
                    shard.outbox.write(one._replace(replies=replies))

        self.coordinator.submit(index, decide, sink.caller, None, is_gathered=is_gathered)
        return sink


def writing(*entries: Entry, answer: str = "done", **options: Any) -> Write:
    """A write whose sink is answered with the text."""
    return Write(tuple(entries), (Reply(None, answer),), **options)


def last_offset_of(batch: bytes) -> int:
    rows, _, _ = walk(batch, 0, len(batch), check_crc=True, size_max=2**31 - 1)
    return int(rows[LAST_OFFSET - ROW_FIELDS])


Story = Callable[[Bench, FakeLog], Coroutine[Any, Any, None]]


def group_entry(group: str = "g", epoch: int = 1) -> Entry:
    """Of a kind that does not wait for others."""
    return Entry(ConsumerGroupKey(GroupId(group)), ConsumerGroupMetadataValue(epoch=epoch))


def led(story: Story, settings: FakeSettings | None = None) -> None:
    """Tell the story with one partition that is led and loaded."""

    async def main() -> None:
        bench, log = Bench(settings), FakeLog()
        log.watch_leadership(bench.coordinator)
        await run_pending()
        assert bench.shard.calls == [("committed", 0), "loaded"]
        bench.shard.calls.clear()
        await story(bench, log)

    virtual_loop.run(main)


async def run_pending() -> None:
    """Until steps that were begun are done."""
    for _ in range(50):
        await asyncio.sleep(0)
