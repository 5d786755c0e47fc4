"""The group coordinator of one broker: the shards of the partitions it leads, and one timer.

Told of leaderships by replication, of requests by the handlers, of changed topics by the broker.
"""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final

from millstream.groups.counts import Counts
from millstream.groups.effects import Caller
from millstream.groups.errors import NotCoordinator
from millstream.groups.shell.gathered import GatheredBatch
from millstream.groups.shell.held_shard import HeldShard, Phase, Question
from millstream.groups.shell.home import Home, Moment, ShellCounts, ShellSeams
from millstream.groups.shell.loading import loading
from millstream.kernels.errors import MalformedRecords
from millstream.model.errors import OperatingError
from millstream.model.ids import LeaderEpoch
from millstream.model.invariant import InvariantViolated
from millstream.observe.logs import get_logger
from millstream.runtime.scheduler import Steps
from millstream.storage.ports import PartitionLog

log = get_logger("millstream.groups")

LOADS_AT_ONCE_MAX: Final = 4
"""Each has a buffer of `offsets.load.buffer.size`."""
LOAD_AGAIN_S: Final = 1.0
"""After a load that failed: the disk may be back."""
TICK_AGAIN_MS: Final = 1_000
"""After a turn of a machine that failed, which is a fault of ours."""
WAIT_MAX_MS: Final = 3_600_000
"""Of the timer; settings may be as large as numbers go."""


# A look-up in an enumeration's class costs as much as four comparisons.
_ACTIVE: Final = Phase.ACTIVE
_LOADING: Final = Phase.LOADING


class GroupCoordinator:
    """Implements `storage.ports.LeadershipListener`. All methods run on the loop's thread."""

    def __init__(self, seams: ShellSeams) -> None:
        self._home = Home(seams)
        self._seams = seams
        self._held: dict[int, HeldShard] = {}
        self._to_load: deque[HeldShard] = deque()
        self._loading = 0
        self._timer: Any = None
        self._timer_ms = 0
        self._linger: Any = None
        self._gathering: dict[HeldShard, None] = {}
        """Shards that may have gathered something; while there are any, they will be written."""
        self._late: dict[HeldShard, int] = {}
        """Shards whose turn failed, and when they have the next."""
        self._past = Counts()
        self._is_stopped = False

    # -- facts -----------------------------------------------------------------------------

    @property
    def counts(self) -> ShellCounts:
        return self._home.counts

    def machine_counts(self) -> Counts:
        """What all shards have done, also those that were led here once."""
        total = Counts()
        total.add(self._past)
        for one in self.active:
            total.add(one.shard.counts)
        return total

    @property
    def active(self) -> list[HeldShard]:
        """The shards that serve."""
        return [one for one in self._held.values() if one.phase is Phase.ACTIVE]

    @property
    def indexes(self) -> list[int]:
        """Of the partitions that are led here, also those that are being loaded."""
        return sorted(self._held)

    @property
    def loading_count(self) -> int:
        return sum(one.phase is Phase.LOADING for one in self._held.values())

    # -- leadership ------------------------------------------------------------------------

    def leadership_gained(self, log: PartitionLog, leader_epoch: LeaderEpoch) -> None:
        """Load the partition, unless it was led before: nobody else can have written to it."""
        held = self._held.get(log.partition.partition)
        if held is not None and held.log is log:
            held.leader_epoch = leader_epoch
            return
        if held is not None:
            self._drop(held)
        held = HeldShard(log, leader_epoch, self._home)
        self._held[held.index] = held
        self._to_load.append(held)
        self._load_more()

    def leadership_lost(self, log: PartitionLog) -> None:
        """Whoever waits is told so at once."""
        held = self._held.get(log.partition.partition)
        if held is not None and held.log is log:
            self._drop(held)
            self._home.deliver()

    def high_watermark_moved(self, log: PartitionLog) -> None:
        """What waited for it can be answered."""
        held = self._held.get(log.partition.partition)
        if held is None or held.log is not log:
            return
        if held.phase is _LOADING:
            self._activate_if_loaded(held)
        elif not held.is_settling:  # else whoever is at it looks again
            held.settle(self._home.moment())
            self._settled(held)

    def _drop(self, held: HeldShard) -> None:
        if self._held.get(held.index) is held:
            del self._held[held.index]
        self._late.pop(held, None)
        if held.phase is Phase.ACTIVE:
            self._past.add(held.shard.counts)
        held.drop()

    # -- loading ---------------------------------------------------------------------------

    def _load_more(self) -> None:
        while self._to_load and self._loading < LOADS_AT_ONCE_MAX and not self._is_stopped:
            held = self._to_load.popleft()
            if held.phase is Phase.LOADING:
                self._loading += 1
                self._seams.turns.spawn(self._load(held), f"load {held.log.partition}")

    async def _load(self, held: HeldShard) -> None:
        counts = self.counts
        begun_ms = self._home.moment().now_ms
        steps = loading(held, size_max=self._seams.settings.offsets_load_bytes)
        try:
            count = await self._seams.turns.run(steps, name=f"load {held.log.partition}")
        except (OperatingError, MalformedRecords) as error:
            self._load_failed(held, error)
            return
        finally:
            self._loading -= 1
            counts.records_skipped += held.shard.skipped_count
            self._load_more()
        if held.phase is Phase.DROPPED:
            return  # led by somebody else by now, or loaded anew
        counts.loads += 1
        counts.records_loaded += count
        counts.load_ms_last = self._home.moment().now_ms - begun_ms
        if count:
            log.info(
                "groups loaded",
                partition=str(held.log.partition),
                records=count,
                milliseconds=counts.load_ms_last,
            )
        self._activate_if_loaded(held)

    def _load_failed(self, held: HeldShard, error: Exception) -> None:
        self.counts.load_failures += 1
        log.error("groups could not be loaded", partition=str(held.log.partition), error=error)
        if held.phase is not Phase.DROPPED and not self._is_stopped:
            self._seams.timers.call_later(LOAD_AGAIN_S, self._load_again, held)

    def _load_again(self, held: HeldShard) -> None:
        """From the beginning, with a new machine: what was applied of the old one is unknown."""
        if held.phase is not Phase.DROPPED and not self._is_stopped:
            self._drop(held)
            self.leadership_gained(held.log, held.leader_epoch)
            self._held[held.index].deleted_topics |= held.deleted_topics

    def _activate_if_loaded(self, held: HeldShard) -> None:
        if held.is_loaded:
            held.activate()
            self._settled(held)

    # -- requests --------------------------------------------------------------------------

    def get(self, index: int) -> HeldShard:
        """The shard, to be asked; raises NotCoordinator or CoordinatorLoading."""
        held = self._held.get(index)
        if held is None:
            raise NotCoordinator
        held.check_active()
        return held

    def ask(
        self,
        index: int,
        question: Question,
        caller: Caller,
        request: Any,
        *,
        keeps_gathered: bool = False,
    ) -> None:
        """Hand a request to the shard; raises what `get` does, everything else is answered.

        `keeps_gathered` is for what `Shard` allows between gathered commits.
        """
        held = self._held.get(index)
        if held is None:
            raise NotCoordinator
        try:
            held.ask(question, caller, request, keeps_gathered=keeps_gathered)
        finally:
            self._settled(held)

    def _settled(self, held: HeldShard) -> None:
        """After every call of a machine."""
        if held.has_gathered:
            self._gather(held)
        # When a turn ends with a write of this shard, the timer is looked at then.
        if held not in self._gathering or self._linger is not None:
            self._arm_for(held)
        self._home.deliver()

    def _gather(self, held: HeldShard) -> None:
        """See to it that what the shard has gathered is written."""
        is_coming = bool(self._gathering)
        self._gathering[held] = None
        if is_coming:
            return
        linger_ms = self._seams.settings.append_linger_ms
        if linger_ms > 0:
            self._linger = self._seams.timers.call_later(linger_ms / 1000, self._write_gathered)
        else:
            self._seams.at_turn_end(self._write_gathered)

    def _write_gathered(self) -> None:
        self._linger = None
        gathering, self._gathering = self._gathering, {}
        if self._is_stopped:
            return
        moment = self._home.moment()
        batches = [held.encode_gathered(moment) for held in gathering]
        gathered = [one for one in batches if one is not None]
        for step in (GatheredBatch.append, GatheredBatch.finish):
            for batch in gathered:
                try:
                    step(batch)
                except Exception as error:  # noqa: BLE001 - the other shards must go on
                    where = str(batch.held.log.partition)
                    log.error("a write of the groups failed", partition=where, error=error)
        for held in gathering:
            self._arm_for(held)
        self._home.deliver()

    # -- topics ----------------------------------------------------------------------------

    def topics_changed(self, names: Collection[str], deleted: Sequence[str]) -> Steps[None]:
        """Tell every shard, in steps: topics that came, went or grew, and those that went."""
        for held in list(self._held.values()):
            if held.phase is not Phase.ACTIVE:
                held.deleted_topics.update(deleted)
                continue  # everything else is decided on topics as they are then
            moment = self._home.moment()
            held.write_gathered(moment)
            held.shard.topics_changed(names, now_ms=moment.now_ms, wall_ms=moment.wall_ms)
            if deleted:
                held.shard.partitions_deleted(deleted)
                held.expire_soon()
            held.settle(moment)
            self._settled(held)
            yield None

    # -- time ------------------------------------------------------------------------------

    def _arm_for(self, held: HeldShard) -> None:
        if held.phase is _ACTIVE:
            self._arm(held.due_ms())

    def _arm(self, due_ms: int) -> None:
        """Let the timer ring no later than then; that it rings too early does no harm."""
        if self._is_stopped or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_ms = min(max(0, due_ms - self._home.moment().now_ms), WAIT_MAX_MS)
        self._timer = self._seams.timers.call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        moment = self._home.moment()
        for held in self.active:
            if self._due_ms(held) <= moment.now_ms:
                self._tick(held, moment)
        due = [self._due_ms(held) for held in self.active]
        if due:
            self._arm(min(due))
        self._home.deliver()

    def _due_ms(self, held: HeldShard) -> int:
        return max(held.due_ms(), self._late.get(held, 0))

    def _tick(self, held: HeldShard, moment: Moment) -> None:
        self._late.pop(held, None)
        try:
            held.tick(moment)
        except InvariantViolated:
            raise
        except Exception as error:  # noqa: BLE001 - the other shards must go on
            self._late[held] = moment.now_ms + TICK_AGAIN_MS
            log.error("a turn of the groups failed", partition=str(held.log.partition), error=error)

    def stop(self) -> None:
        """No timer rings any more; nobody is told anything."""
        self._is_stopped = True
        for handle in (self._timer, self._linger):
            if handle is not None:
                handle.cancel()
        self._to_load.clear()
