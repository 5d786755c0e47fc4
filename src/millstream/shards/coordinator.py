"""The shards of the partitions of one internal topic that this broker leads, and one timer.

Leadership is reported by replication, requests come from the coordinator whose shards they are.
A request goes straight down: `submit` here, `LedShard.submit`, a method of the machine. Writes that
machines let wait for others are gathered over all requests of one iteration of the event loop and
appended here, in `_write_gathered`, one batch per partition.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic

from millstream.kernels.errors import MalformedRecords
from millstream.model.errors import OperatingError
from millstream.model.ids import LeaderEpoch
from millstream.model.invariant import InvariantViolated
from millstream.observe.logs import get_logger
from millstream.runtime.scheduler import StepGenerator
from millstream.shards.context import ShardContext, ShardCounts, ShardDependencies, Timestamps
from millstream.shards.effects import Caller
from millstream.shards.errors import NotCoordinator
from millstream.shards.led_shard import LedShard, Phase
from millstream.shards.loader import load_steps
from millstream.shards.machine import Machine, ShardCall
from millstream.shards.write_batch import WriteBatch
from millstream.storage.ports import PartitionLog

log = get_logger("millstream.shards")

LOADS_AT_ONCE_MAX: Final = 4
"""Each has a buffer of `load_bytes_max`."""
LOAD_AGAIN_S: Final = 1.0
"""After a load that failed: the disk may be back."""
TICK_AGAIN_MS: Final = 1_000
"""After a turn of a machine that failed, which is a fault of ours."""
WAIT_MAX_MS: Final = 3_600_000
"""Of the timer; settings may be as large as numbers go."""


# A look-up in an enumeration's class costs as much as four comparisons.
_ACTIVE: Final = Phase.ACTIVE
_LOADING: Final = Phase.LOADING


class ShardCoordinator(Generic[Machine]):
    """Implements `storage.ports.LeadershipListener`. All methods run on the loop's thread."""

    def __init__(self, dependencies: ShardDependencies[Machine]) -> None:
        self.context = ShardContext(dependencies)
        self._dependencies = dependencies
        self._led: dict[int, LedShard[Machine]] = {}
        self._to_load: deque[LedShard[Machine]] = deque()
        self._loading = 0
        self._timer: Any = None
        self._timer_ms = 0
        self._linger: Any = None
        self._gathering: dict[LedShard[Machine], None] = {}
        """Shards that may have gathered something; while there are any, they will be written."""
        self._late: dict[LedShard[Machine], int] = {}
        """Shards whose turn failed, and when they have the next."""
        self._is_stopped = False

    # -- facts -----------------------------------------------------------------------------

    @property
    def counts(self) -> ShardCounts:
        return self.context.counts

    @property
    def active(self) -> list[LedShard[Machine]]:
        """The shards that serve."""
        return [one for one in self._led.values() if one.phase is Phase.ACTIVE]

    @property
    def indexes(self) -> list[int]:
        """Of the partitions that are led here, also those that are being loaded."""
        return sorted(self._led)

    @property
    def loading_count(self) -> int:
        return sum(one.phase is Phase.LOADING for one in self._led.values())

    # -- leadership ------------------------------------------------------------------------

    def leadership_gained(self, log: PartitionLog, leader_epoch: LeaderEpoch) -> None:
        """Load the partition, unless it was led before: nobody else can have written to it."""
        led = self._led.get(log.partition.partition)
        if led is not None and led.log is log:
            led.leader_epoch = leader_epoch
            return
        if led is not None:
            self._drop(led)
        led = LedShard(log, leader_epoch, self.context)
        self._led[led.index] = led
        self._to_load.append(led)
        self._load_more()

    def leadership_lost(self, log: PartitionLog) -> None:
        """Callers that wait are told so at once."""
        led = self._led.get(log.partition.partition)
        if led is not None and led.log is log:
            self._drop(led)
            self.context.deliver()

    def high_watermark_moved(self, log: PartitionLog) -> None:
        """What waited for it can be answered."""
        led = self._led.get(log.partition.partition)
        if led is None or led.log is not log:
            return
        if led.phase is _LOADING:
            self._activate_if_loaded(led)
        elif not led.is_draining:  # else that call releases what is committed
            led.drain_effects(self.context.timestamps())
            self._drained(led)

    def _drop(self, led: LedShard[Machine]) -> None:
        if self._led.get(led.index) is led:
            del self._led[led.index]
        self._late.pop(led, None)
        if led.phase is Phase.ACTIVE:
            self._dependencies.on_dropped(led.machine)
        led.drop()

    # -- loading ---------------------------------------------------------------------------

    def _load_more(self) -> None:
        while self._to_load and self._loading < LOADS_AT_ONCE_MAX and not self._is_stopped:
            led = self._to_load.popleft()
            if led.phase is Phase.LOADING:
                self._loading += 1
                self._dependencies.scheduler.spawn(self._load(led), f"load {led.log.partition}")

    async def _load(self, led: LedShard[Machine]) -> None:
        counts = self.counts
        begun_ms = self.context.timestamps().now_ms
        steps = load_steps(led, size_max=self._dependencies.settings.load_bytes_max)
        try:
            count = await self._dependencies.scheduler.run(steps, name=f"load {led.log.partition}")
        except (OperatingError, MalformedRecords) as error:
            self._load_failed(led, error)
            return
        finally:
            self._loading -= 1
            counts.records_skipped += led.machine.skipped_count
            self._load_more()
        if led.phase is Phase.DROPPED:
            return  # led by another broker by now, or loaded again
        counts.loads += 1
        counts.records_loaded += count
        counts.load_ms_last = self.context.timestamps().now_ms - begun_ms
        if count:
            log.info(
                f"{self._dependencies.name} loaded",
                partition=str(led.log.partition),
                records=count,
                milliseconds=counts.load_ms_last,
            )
        self._activate_if_loaded(led)

    def _load_failed(self, led: LedShard[Machine], error: Exception) -> None:
        self.counts.load_failures += 1
        log.error(
            f"{self._dependencies.name} could not be loaded",
            partition=str(led.log.partition),
            error=error,
        )
        if led.phase is not Phase.DROPPED and not self._is_stopped:
            self._dependencies.timers.call_later(LOAD_AGAIN_S, self._load_again, led)

    def _load_again(self, led: LedShard[Machine]) -> None:
        """From the beginning, with a new machine: what was applied of the old one is unknown."""
        if led.phase is not Phase.DROPPED and not self._is_stopped:
            self._drop(led)
            self.leadership_gained(led.log, led.leader_epoch)
            self._led[led.index].deferred += led.deferred

    def _activate_if_loaded(self, led: LedShard[Machine]) -> None:
        if led.is_loaded:
            led.activate()
            self._drained(led)
            self._dependencies.on_active(led.index)

    # -- requests --------------------------------------------------------------------------

    def get(self, index: int) -> LedShard[Machine]:
        """The shard, which serves; raises NotCoordinator or CoordinatorLoading."""
        led = self._led.get(index)
        if led is None:
            raise NotCoordinator
        led.check_active()
        return led

    def submit(
        self, index: int, call: ShardCall, caller: Caller, request: Any, *, is_gathered: bool
    ) -> None:
        """Hand a request to the shard of a partition; everything but what `get` raises is answered.

        `is_gathered` is for requests whose writes may wait for those of others, and for those that
        may be decided before gathered writes are in the log.
        """
        led = self._led.get(index)
        if led is None:
            raise NotCoordinator
        try:
            led.submit(call, caller, request, is_gathered=is_gathered)
        finally:
            self._drained(led)

    def _drained(self, led: LedShard[Machine]) -> None:
        """After every call of a machine."""
        if led.has_gathered:
            self._gather(led)
        # When the iteration ends with a write of this shard, the timer is armed then.
        if led not in self._gathering or self._linger is not None:
            self._arm_for(led)
        self.context.deliver()

    def _gather(self, led: LedShard[Machine]) -> None:
        """See to it that what the shard has gathered is written."""
        is_coming = bool(self._gathering)
        self._gathering[led] = None
        if is_coming:
            return
        linger_ms = self._dependencies.settings.append_linger_ms
        if linger_ms > 0:
            self._linger = self._dependencies.timers.call_later(
                linger_ms / 1000, self._write_gathered
            )
        else:
            self._dependencies.at_iteration_end(self._write_gathered)

    def _write_gathered(self) -> None:
        self._linger = None
        gathering, self._gathering = self._gathering, {}
        if self._is_stopped:
            return
        time = self.context.timestamps()
        batches = [led.encode_gathered(time) for led in gathering]
        gathered = [one for one in batches if one is not None]
        for step in (WriteBatch.append, WriteBatch.finish):
            for batch in gathered:
                try:
                    step(batch)
                except Exception as error:  # noqa: BLE001 - the other shards must go on
                    where = str(batch.led.log.partition)
                    log.error(
                        f"{self._dependencies.name} could not be written",
                        partition=where,
                        error=error,
                    )
        for led in gathering:
            self._arm_for(led)
        self.context.deliver()

    def call_each_steps(
        self,
        call: Callable[[LedShard[Machine], Timestamps], None],
        *,
        once_loaded: Callable[[Machine], None] | None = None,
    ) -> StepGenerator[None]:
        """Call every machine, in steps; those that are being loaded hear `once_loaded` then."""
        for led in list(self._led.values()):
            if led.phase is not _ACTIVE:
                if once_loaded is not None:
                    led.deferred.append(once_loaded)
                continue
            time = self.context.timestamps()
            led.write_gathered(time)
            call(led, time)
            led.drain_effects(time)
            self._drained(led)
            yield None

    # -- time ------------------------------------------------------------------------------

    def _arm_for(self, led: LedShard[Machine]) -> None:
        if led.phase is _ACTIVE:
            self._arm(led.due_ms())

    def _arm(self, due_ms: int) -> None:
        """Let the timer ring no later than then; that it rings too early does no harm."""
        if self._is_stopped or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_ms = min(max(0, due_ms - self.context.timestamps().now_ms), WAIT_MAX_MS)
        self._timer = self._dependencies.timers.call_later(wait_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        time = self.context.timestamps()
        for led in self.active:
            if self._due_ms(led) <= time.now_ms:
                self._tick(led, time)
        due = [self._due_ms(led) for led in self.active]
        if due:
            self._arm(min(due))
        self.context.deliver()

    def _due_ms(self, led: LedShard[Machine]) -> int:
        return max(led.due_ms(), self._late.get(led, 0))

    def _tick(self, led: LedShard[Machine], time: Timestamps) -> None:
        self._late.pop(led, None)
        try:
            led.tick(time)
        except InvariantViolated:
            raise
        except Exception as error:  # noqa: BLE001 - the other shards must go on
            self._late[led] = time.now_ms + TICK_AGAIN_MS
            log.error(
                f"time-outs of {self._dependencies.name} could not be handled",
                partition=str(led.log.partition),
                error=error,
            )

    def stop(self) -> None:
        """No timer rings any more; nobody is answered."""
        self._is_stopped = True
        for handle in (self._timer, self._linger):
            if handle is not None:
                handle.cancel()
        self._to_load.clear()
