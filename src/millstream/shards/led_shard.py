"""One partition of an internal topic that is led here: its machine, and its pending writes.

The machine's effects are drained after every call. A write is appended at once or refused; its
replies wait until the high watermark has passed it. Writes that may wait for others of their kind
(commits of offsets) are gathered until the end of the event loop's iteration and written as one
batch; before any other call of the machine they are in the log.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, Generic

from millstream.model.errors import BatchTooLarge, OperatingError, without_frames
from millstream.model.ids import NO_OFFSET, LeaderEpoch, Offset
from millstream.model.invariant import invariant
from millstream.shards.context import ShardContext, Timestamps
from millstream.shards.effects import Caller, Outbox, Reply, Write
from millstream.shards.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    InvalidEntries,
    NotCoordinator,
)
from millstream.shards.machine import Machine, ShardCall
from millstream.shards.write_batch import AppendResult, WriteBatch, encode_writes
from millstream.storage.ports import AppendOutcome, PartitionLog

AT_ONCE: Final = 0
"""As `append_linger_ms`: nothing is gathered."""


class Phase(Enum):
    """Whether the shard is active."""

    LOADING = "loading"
    ACTIVE = "active"
    DROPPED = "dropped"
    """Not led any more, or loaded again: later calls are ignored."""


_SPLITTABLE_ERRORS: Final = (BatchTooLarge, InvalidEntries)
"""Errors of a batch of several writes that may be due to only one of them."""

# An attribute lookup in an enum class costs as much as four comparisons.
_ACTIVE: Final = Phase.ACTIVE
_DROPPED: Final = Phase.DROPPED


class _Pending:
    """A write that is in the log and not committed yet."""

    __slots__ = ("deadline_ms", "end", "is_answered", "write")

    def __init__(self, write: Write, *, end: Offset, deadline_ms: int) -> None:
        self.write = write
        self.end = end
        self.deadline_ms = deadline_ms
        self.is_answered = not write.replies
        """Its replies were sent, or there are none."""


class LedShard(Generic[Machine]):
    """See the module. `drain_effects` must follow every call of the machine."""

    def __init__(
        self, log: PartitionLog, leader_epoch: LeaderEpoch, context: ShardContext[Machine]
    ) -> None:
        self.log = log
        self.index = log.partition.partition
        self.leader_epoch = leader_epoch
        self.phase = Phase.LOADING
        self.outbox = Outbox()
        self.machine = context.dependencies.new_shard(self.index, self.outbox)
        self.load_end: Offset | None = None
        """The log end offset up to which it was loaded; None: it is being loaded."""
        self.deferred: list[Callable[[Machine], None]] = []
        """Calls of the machine to make when it is loaded."""
        self._context = context
        self._gathered: list[Write] = []
        """Written as one batch at the end of the event loop's iteration."""
        self._pending: deque[_Pending] = deque()
        self._unanswered: deque[_Pending] = deque()
        """Those of them whose callers wait, by the deadline of their replies."""
        self._committed = NO_OFFSET
        self._expire_ms = 0
        self.is_draining = False
        """Whether effects are being taken: that call releases what is committed then."""

    def __repr__(self) -> str:
        return f"LedShard({self.log.partition}, {self.phase.value})"

    # -- requests --------------------------------------------------------------------------

    def check_active(self) -> None:
        """Raise CoordinatorLoading or NotCoordinator unless it is active."""
        if self.phase is Phase.LOADING:
            raise CoordinatorLoading
        if self.phase is Phase.DROPPED:
            raise NotCoordinator

    def submit(self, call: ShardCall, caller: Caller, request: Any, *, is_gathered: bool) -> None:
        """Let the machine decide; the response goes through the caller's token.

        Gathered writes are appended before, unless the request `is_gathered` itself.
        """
        if self.phase is not _ACTIVE:
            self.check_active()
        time = self._context.timestamps()
        if self._gathered and not is_gathered:
            self.write_gathered(time)
        try:
            call(self.machine, caller, request, now_ms=time.now_ms, wall_ms=time.wall_ms)
        except OperatingError as error:
            self._context.refuse(caller.token, without_frames(error))
        finally:
            self.drain_effects(time)

    # -- effects ---------------------------------------------------------------------------

    def drain_effects(self, time: Timestamps) -> None:
        """Handle the effects until none is left, and release what is committed."""
        if self.is_draining:
            return  # the high watermark moved inside an append, whose caller releases it
        self.is_draining = True
        try:
            self._release(time)
            while self.phase is not _DROPPED and (effects := self.outbox.take()):
                is_written = False
                for effect in effects:
                    if isinstance(effect, Reply):
                        self._context.answer(effect)
                    else:
                        is_written |= self._write(effect, time)
                if is_written:
                    self._release(time)
        finally:
            self.is_draining = False

    def _write(self, write: Write, time: Timestamps) -> bool:
        """Append it, or gather it with others; return whether it was appended."""
        context = self._context
        may_wait = write.entries and context.settings.append_linger_ms != AT_ONCE
        if may_wait and context.dependencies.is_gatherable(write):
            self._gathered.append(write)
            return False
        gathered, self._gathered = self._gathered, []
        self._append([*gathered, write], time)
        return True

    @property
    def is_active(self) -> bool:
        return self.phase is _ACTIVE

    @property
    def has_gathered(self) -> bool:
        return bool(self._gathered)

    def write_gathered(self, time: Timestamps) -> None:
        """Append what was gathered, as one batch."""
        batch = self.encode_gathered(time)
        if batch is not None:
            batch.append()
            batch.finish()

    def encode_gathered(self, time: Timestamps) -> WriteBatch | None:
        """The gathered writes as one batch; None if there are none."""
        if not self._gathered or self.phase is not _ACTIVE:
            return None
        gathered, self._gathered = self._gathered, []
        return WriteBatch(self, gathered, time, self._context.dependencies.encode)

    def finish_batch(self, writes: Sequence[Write], result: AppendResult, time: Timestamps) -> None:
        """Handle the result of appending these writes as a batch."""
        self.is_draining = True
        try:
            self._finish(writes, result, time)
        finally:
            self.is_draining = False
        self.drain_effects(time)

    def _append(self, writes: Sequence[Write], time: Timestamps) -> None:
        """In one batch, or one by one if they have producers."""
        if len(writes) > 1 and any(one.producer is not None for one in writes):
            for one in writes:
                self._append([one], time)
        elif any(one.entries for one in writes):
            self._finish(
                writes,
                self.append(encode_writes(self._context.dependencies.encode, writes, time)),
                time,
            )
        else:  # a reply that waits for earlier writes
            self._await_commit(writes, self.log.log_end, time)

    def append(self, batch: bytearray | OperatingError) -> AppendResult:
        """Append the batch; return the result or the error."""
        if isinstance(batch, OperatingError):
            return batch
        try:
            return self.log.append_now(batch)
        except OperatingError as error:
            return without_frames(error)

    def _finish(self, writes: Sequence[Write], result: AppendResult, time: Timestamps) -> None:
        if self.phase is _DROPPED:  # meanwhile, and the machine with it
            for one in writes:
                for reply in one.replies:
                    self._context.refuse(reply.token, NotCoordinator())
        elif isinstance(result, AppendOutcome):
            self._apply_appended(writes, result, time)
        elif len(writes) > 1 and isinstance(result, _SPLITTABLE_ERRORS):
            for one in writes:
                self._append([one], time)
        else:
            for one in writes:
                self._refuse(one, result, time)

    def _apply_appended(
        self, writes: Sequence[Write], taken: AppendOutcome, time: Timestamps
    ) -> None:
        counts = self._context.counts
        counts.batches += 1
        counts.writes += len(writes)
        base = taken.base_offset
        last = base - 1
        now_ms, wall_ms = time
        for one in writes:
            last += len(one.entries)
            self.machine.on_appended(one, Offset(last), now_ms=now_ms, wall_ms=wall_ms)
        if last != taken.last_offset:
            invariant(False, "I-29 not every entry has its offset", partition=self.log.partition)
        self._await_commit(writes, base, time)

    def _await_commit(self, writes: Sequence[Write], base: Offset, time: Timestamps) -> None:
        """The writes are in the log from `base` on. Without followers they are committed now."""
        end = base
        if not self._pending and self.phase is _ACTIVE:
            mark = self.log.high_watermark
            if mark >= base + sum([len(one.entries) for one in writes]):
                self.commit_to(mark)
                for one in writes:
                    self._answer(one, time)
                return
        deadline_ms = time.now_ms + self._context.settings.commit_timeout_ms
        for one in writes:
            end = Offset(end + len(one.entries))
            pending = _Pending(one, end=end, deadline_ms=deadline_ms)
            self._pending.append(pending)
            if not pending.is_answered:
                self._unanswered.append(pending)

    def commit_to(self, mark: Offset) -> None:
        """Everything below the high watermark is committed."""
        if mark > self._committed:
            self._committed = mark
            self.machine.on_high_watermark(mark)

    def _answer(self, write: Write, time: Timestamps) -> None:
        for reply in write.replies:
            self._context.answer(reply)
        self.machine.on_written(write, now_ms=time.now_ms)

    def _refuse(self, write: Write, error: OperatingError, time: Timestamps) -> None:
        self._context.counts.writes_refused += 1
        for reply in write.replies:
            self._context.refuse(reply.token, error)
        self.machine.on_refused(write, error, now_ms=time.now_ms)

    def _release(self, time: Timestamps) -> None:
        """Send the replies of writes that the high watermark has passed."""
        if self.phase is not _ACTIVE:
            return
        mark = self.log.high_watermark
        if mark > self._committed:
            self.commit_to(mark)
        while self._pending and self._pending[0].end <= mark:
            pending = self._pending.popleft()
            if not pending.is_answered:
                pending.is_answered = True
                for reply in pending.write.replies:
                    self._context.answer(reply)
            self.machine.on_written(pending.write, now_ms=time.now_ms)
        while self._unanswered and self._unanswered[0].is_answered:
            self._unanswered.popleft()

    # -- loading and unloading -------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        """Whether all that was loaded is committed."""
        return self.load_end is not None and self.log.high_watermark >= self.load_end

    def activate(self) -> None:
        """Start serving requests."""
        invariant(self.phase is Phase.LOADING, "I-30 a shard is activated twice", shard=self)
        invariant(self.is_loaded, "I-30 a shard serves before it knows all", shard=self)
        self.phase = Phase.ACTIVE
        time = self._context.timestamps()
        self._expire_ms = time.now_ms + self._context.settings.expire_interval_ms
        self.commit_to(self.log.high_watermark)
        self.machine.on_loaded(now_ms=time.now_ms, wall_ms=time.wall_ms)
        for call in self.deferred:
            call(self.machine)
        self.drain_effects(time)

    def drop(self) -> None:
        """Answer all waiting callers with NotCoordinator."""
        was_active, self.phase = self.phase is Phase.ACTIVE, Phase.DROPPED
        context = self._context
        waiting = [one.write for one in self._pending if not one.is_answered]
        for write in (*waiting, *self._gathered):
            for reply in write.replies:
                context.refuse(reply.token, NotCoordinator())
        for effect in self.outbox.take():
            for reply in effect.replies if isinstance(effect, Write) else (effect,):
                context.refuse(reply.token, NotCoordinator())
        if was_active:
            for token in self.machine.unload():
                context.refuse(token, NotCoordinator())
        self._pending.clear()
        self._unanswered.clear()
        self._gathered.clear()

    # -- time ------------------------------------------------------------------------------

    def due_ms(self) -> int:
        """When `tick` has work to do."""
        due = self._expire_ms
        found = self.machine.next_deadline_ms()
        if found is not None and found < due:
            due = found
        if self._unanswered and self._unanswered[0].deadline_ms < due:
            due = self._unanswered[0].deadline_ms
        return due

    def tick(self, time: Timestamps) -> None:
        """Handle sessions, rebalances, commit timeouts, and what has expired."""
        self.write_gathered(time)
        now_ms = time.now_ms
        while self._unanswered and (
            self._unanswered[0].is_answered or self._unanswered[0].deadline_ms <= now_ms
        ):
            self._time_out(self._unanswered.popleft())
        found = self.machine.next_deadline_ms()
        if found is not None and found <= now_ms:
            self.machine.tick(now_ms=now_ms, wall_ms=time.wall_ms)
            self.drain_effects(time)
        if self._expire_ms <= now_ms and self.phase is Phase.ACTIVE:
            has_more = self.machine.expire(now_ms=now_ms, wall_ms=time.wall_ms)
            interval_ms = self._context.settings.expire_interval_ms
            self._expire_ms = now_ms + (0 if has_more else interval_ms)
            self.drain_effects(time)

    def _time_out(self, pending: _Pending) -> None:
        """Answer with a retriable error; the write may still be committed."""
        if pending.is_answered:
            return
        pending.is_answered = True
        self._context.counts.writes_timed_out += 1
        for reply in pending.write.replies:
            self._context.refuse(reply.token, CoordinatorNotAvailable())

    def expire_soon(self) -> None:
        """Start a sweep with the next `tick`."""
        self._expire_ms = self._context.timestamps().now_ms
