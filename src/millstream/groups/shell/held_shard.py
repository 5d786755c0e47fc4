"""One partition of the offsets topic that is led here: its machine, and what it has written.

The machine's effects are taken after every call. What it writes is taken by the log at once or not
at all; the answers wait until the high watermark has passed it. Commits may be gathered for a
moment and written as one batch; before anything else is asked of the machine they are in the log.
"""

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from millstream.groups.effects import Caller, Outbox, Reply, Write
from millstream.groups.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    InvalidGroupRequest,
    NotCoordinator,
)
from millstream.groups.shell.gathered import GatheredBatch, Taken, encoded
from millstream.groups.shell.home import Home, Moment
from millstream.model.errors import BatchTooLarge, OperatingError
from millstream.model.ids import NO_OFFSET, LeaderEpoch, Offset
from millstream.model.invariant import invariant
from millstream.storage.ports import AppendOutcome, PartitionLog

if TYPE_CHECKING:
    from millstream.groups.shard import Shard

AT_ONCE: Final = 0
"""As `group.coordinator.append.linger.ms`: nothing is gathered."""

Question = Callable[["Shard", Caller, Any, Moment], None]
"""Hands a request to the machine's method for it."""


class Phase(Enum):
    """What the partition can be asked."""

    LOADING = "loading"
    ACTIVE = "active"
    DROPPED = "dropped"
    """Not led any more, or led anew: nothing counts that still comes for it."""


_NOT_TOGETHER: Final = (BatchTooLarge, InvalidGroupRequest)
"""Why several writes cannot be one batch although all but one of them could be written."""

# A look-up in an enumeration's class costs as much as four comparisons.
_ACTIVE: Final = Phase.ACTIVE
_DROPPED: Final = Phase.DROPPED


class _Pending:
    """Writes that the log has taken and that do not count yet."""

    __slots__ = ("deadline_ms", "end", "is_told", "write")

    def __init__(self, write: Write, *, end: Offset, deadline_ms: int) -> None:
        self.write = write
        self.end = end
        self.deadline_ms = deadline_ms
        self.is_told = not write.replies
        """Its callers were answered, or there are none."""


class HeldShard:
    """See the module's docstring. `settle` after every call of the machine."""

    def __init__(self, log: PartitionLog, leader_epoch: LeaderEpoch, home: Home) -> None:
        self.log = log
        self.index = log.partition.partition
        self.leader_epoch = leader_epoch
        self.phase = Phase.LOADING
        self.outbox = Outbox()
        self.shard = home.seams.new_shard(self.index, self.outbox)
        self.load_end: Offset | None = None
        """Where the log ended when all before it had been read; None: it is being read."""
        self.deleted_topics: set[str] = set()
        """While it was being loaded: their offsets go when all are known."""
        self._home = home
        self._gathered: list[Write] = []
        self._pending: deque[_Pending] = deque()
        self._untold: deque[_Pending] = deque()
        """Those of them whose callers wait, by the time at which they are told to try again."""
        self._committed = NO_OFFSET
        self._expire_ms = 0
        self.is_settling = False
        """Whether effects are being taken: whoever is at it sees by itself what counts then."""

    def __repr__(self) -> str:
        return f"HeldShard({self.log.partition}, {self.phase.value})"

    # -- requests --------------------------------------------------------------------------

    def check_active(self) -> None:
        """Raise what a caller is told who cannot be served now."""
        if self.phase is Phase.LOADING:
            raise CoordinatorLoading
        if self.phase is Phase.DROPPED:
            raise NotCoordinator

    def ask(
        self, question: Question, caller: Caller, request: Any, *, keeps_gathered: bool
    ) -> None:
        """Let the machine decide; its answer comes through the caller's token."""
        if self.phase is not _ACTIVE:
            self.check_active()
        moment = self._home.moment()
        if self._gathered and not keeps_gathered:
            self.write_gathered(moment)
        try:
            question(self.shard, caller, request, moment)
        except OperatingError as error:
            self._home.refuse(caller.token, error)
        finally:
            self.settle(moment)

    # -- effects ---------------------------------------------------------------------------

    def settle(self, moment: Moment) -> None:
        """Take the effects until none is left, and see what counts by now."""
        if self.is_settling:
            return  # the high watermark moved inside of an append, whose caller looks again
        self.is_settling = True
        try:
            self._release(moment)
            while self.phase is not _DROPPED and (effects := self.outbox.take()):
                is_written = False
                for effect in effects:
                    if isinstance(effect, Reply):
                        self._home.answer(effect)
                    else:
                        is_written |= self._write(effect, moment)
                if is_written:
                    self._release(moment)
        finally:
            self.is_settling = False

    def _write(self, write: Write, moment: Moment) -> bool:
        """Now, or with others; whether it was now."""
        home = self._home
        may_wait = write.entries and home.settings.append_linger_ms != AT_ONCE
        if may_wait and home.seams.is_gatherable(write):
            self._gathered.append(write)
            return False
        gathered, self._gathered = self._gathered, []
        self._append([*gathered, write], moment)
        return True

    @property
    def has_gathered(self) -> bool:
        return bool(self._gathered)

    def write_gathered(self, moment: Moment) -> None:
        """What was gathered is written now."""
        batch = self.encode_gathered(moment)
        if batch is not None:
            batch.append()
            batch.finish()

    def encode_gathered(self, moment: Moment) -> GatheredBatch | None:
        """What was gathered, to be written at once; None where that is nothing."""
        if not self._gathered or self.phase is not _ACTIVE:
            return None
        gathered, self._gathered = self._gathered, []
        return GatheredBatch(self, gathered, moment)

    def finish_gathered(self, writes: Sequence[Write], taken: Taken, moment: Moment) -> None:
        """The log has taken the batch of these, or has not."""
        self.is_settling = True
        try:
            self._finish(writes, taken, moment)
        finally:
            self.is_settling = False
        self.settle(moment)

    def _append(self, writes: Sequence[Write], moment: Moment) -> None:
        """In one batch, or else one by one: what one cannot be is no fault of the others."""
        if len(writes) > 1 and any(one.producer is not None for one in writes):
            for one in writes:
                self._append([one], moment)
        elif any(one.entries for one in writes):
            self._finish(writes, self.take(encoded(writes, moment)), moment)
        else:  # an answer that waits for what was written before it
            self._await(writes, self.log.log_end, moment)

    def take(self, batch: bytearray | OperatingError) -> Taken:
        """Let the log take a batch."""
        if isinstance(batch, OperatingError):
            return batch
        try:
            return self.log.append_now(batch)
        except OperatingError as error:
            return error

    def _finish(self, writes: Sequence[Write], taken: Taken, moment: Moment) -> None:
        if self.phase is _DROPPED:  # meanwhile, and the machine with it
            for one in writes:
                for reply in one.replies:
                    self._home.refuse(reply.token, NotCoordinator())
        elif isinstance(taken, AppendOutcome):
            self._applied(writes, taken, moment)
        elif len(writes) > 1 and isinstance(taken, _NOT_TOGETHER):
            for one in writes:
                self._append([one], moment)
        else:
            for one in writes:
                self._refuse(one, taken, moment)

    def _applied(self, writes: Sequence[Write], taken: AppendOutcome, moment: Moment) -> None:
        counts = self._home.counts
        counts.batches += 1
        counts.writes += len(writes)
        base = taken.base_offset
        last = base - 1
        now_ms, wall_ms = moment
        for one in writes:
            last += len(one.entries)
            self.shard.appended(one, Offset(last), now_ms=now_ms, wall_ms=wall_ms)
        if last != taken.last_offset:
            invariant(False, "I-29 not every entry has its offset", partition=self.log.partition)
        self._await(writes, base, moment)

    def _await(self, writes: Sequence[Write], base: Offset, moment: Moment) -> None:
        """The log has the writes from `base` on. Without followers they count already."""
        end = base
        if not self._pending and self.phase is _ACTIVE:
            mark = self.log.high_watermark
            if mark >= base + sum([len(one.entries) for one in writes]):
                self.count(mark)
                for one in writes:
                    self._tell(one, moment)
                return
        deadline_ms = moment.now_ms + self._home.settings.offsets_commit_timeout_ms
        for one in writes:
            end = Offset(end + len(one.entries))
            pending = _Pending(one, end=end, deadline_ms=deadline_ms)
            self._pending.append(pending)
            if not pending.is_told:
                self._untold.append(pending)

    def count(self, mark: Offset) -> None:
        """What is below the mark can not be lost any more."""
        if mark > self._committed:
            self._committed = mark
            self.shard.committed(mark)

    def _tell(self, write: Write, moment: Moment) -> None:
        for reply in write.replies:
            self._home.answer(reply)
        self.shard.written(write, now_ms=moment.now_ms)

    def _refuse(self, write: Write, error: OperatingError, moment: Moment) -> None:
        self._home.counts.writes_refused += 1
        for reply in write.replies:
            self._home.refuse(reply.token, error)
        self.shard.refused(write, error, now_ms=moment.now_ms)

    def _release(self, moment: Moment) -> None:
        """What the high watermark has passed counts: say so."""
        if self.phase is not _ACTIVE:
            return
        mark = self.log.high_watermark
        if mark > self._committed:
            self.count(mark)
        while self._pending and self._pending[0].end <= mark:
            pending = self._pending.popleft()
            if not pending.is_told:
                pending.is_told = True
                for reply in pending.write.replies:
                    self._home.answer(reply)
            self.shard.written(pending.write, now_ms=moment.now_ms)
        while self._untold and self._untold[0].is_told:
            self._untold.popleft()

    # -- loading and unloading -------------------------------------------------------------

    @property
    def is_loaded(self) -> bool:
        """Whether all that was read counts by now."""
        return self.load_end is not None and self.log.high_watermark >= self.load_end

    def activate(self) -> None:
        """Serve from now on."""
        invariant(self.phase is Phase.LOADING, "I-30 a shard is activated twice", shard=self)
        invariant(self.is_loaded, "I-30 a shard serves before it knows all", shard=self)
        self.phase = Phase.ACTIVE
        moment = self._home.moment()
        self._expire_ms = moment.now_ms + self._home.settings.offsets_retention_check_interval_ms
        self.count(self.log.high_watermark)
        self.shard.loaded(now_ms=moment.now_ms, wall_ms=moment.wall_ms)
        if self.deleted_topics:
            self.shard.partitions_deleted(sorted(self.deleted_topics))
        self.settle(moment)

    def drop(self) -> None:
        """Everybody who waits is told that the coordinator is somewhere else."""
        was_active, self.phase = self.phase is Phase.ACTIVE, Phase.DROPPED
        home = self._home
        waiting = [one.write for one in self._pending if not one.is_told]
        for write in (*waiting, *self._gathered):
            for reply in write.replies:
                home.refuse(reply.token, NotCoordinator())
        for effect in self.outbox.take():
            for reply in effect.replies if isinstance(effect, Write) else (effect,):
                home.refuse(reply.token, NotCoordinator())
        if was_active:
            for token in self.shard.unload():
                home.refuse(token, NotCoordinator())
        self._pending.clear()
        self._untold.clear()
        self._gathered.clear()

    # -- time ------------------------------------------------------------------------------

    def due_ms(self) -> int:
        """When `tick` has something to do."""
        due = self._expire_ms
        found = self.shard.next_deadline_ms()
        if found is not None and found < due:
            due = found
        if self._untold and self._untold[0].deadline_ms < due:
            due = self._untold[0].deadline_ms
        return due

    def tick(self, moment: Moment) -> None:
        """Sessions, rebalances, writes that take too long, and what has expired."""
        self.write_gathered(moment)
        now_ms = moment.now_ms
        while self._untold and (self._untold[0].is_told or self._untold[0].deadline_ms <= now_ms):
            self._give_up(self._untold.popleft())
        found = self.shard.next_deadline_ms()
        if found is not None and found <= now_ms:
            self.shard.tick(now_ms=now_ms, wall_ms=moment.wall_ms)
            self.settle(moment)
        if self._expire_ms <= now_ms and self.phase is Phase.ACTIVE:
            has_more = self.shard.expire(now_ms=now_ms, wall_ms=moment.wall_ms)
            interval_ms = self._home.settings.offsets_retention_check_interval_ms
            self._expire_ms = now_ms + (0 if has_more else interval_ms)
            self.settle(moment)

    def _give_up(self, pending: _Pending) -> None:
        """Tell the callers to try again; what was written still may come to count."""
        if pending.is_told:
            return
        pending.is_told = True
        self._home.counts.writes_timed_out += 1
        for reply in pending.write.replies:
            self._home.refuse(reply.token, CoordinatorNotAvailable())

    def expire_soon(self) -> None:
        """With the next `tick`."""
        self._expire_ms = self._home.moment().now_ms
