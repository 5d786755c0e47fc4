"""The shards of the partitions of one internal topic that this broker leads, and one timer.

Leadership is reported by replication, requests come from the coordinator that owns the shards. A
request is passed on directly: `submit` here, `LedShard.submit`, a method of the machine. Writes
that may wait for others are gathered over all requests of one iteration of the event loop and
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
from millstream.runtime.fatal import end_if_fatal
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
LOAD_RETRY_S: Final = 1.0
"""Delay after a failed load: the disk may be available again."""
TICK_RETRY_MS: Final = 1_000
"""Delay after a failed `tick` of a machine, which is a bug of ours."""
WAIT_MAX_MS: Final = 3_600_000
"""Of the timer; settings may be arbitrarily large."""


# An attribute lookup in an enum class costs as much as four comparisons.
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
        """Shards that may have gathered writes; if there are any, a write is scheduled."""
        self._retry_at_ms: dict[LedShard[Machine], int] = {}
        """Shards whose `tick` failed, and when it is retried."""
        self._is_stopped = False

    # -- facts -----------------------------------------------------------------------------

    @property
    def counts(self) -> ShardCounts:
        return self.context.counts

    @property
    def active(self) -> list[LedShard[Machine]]:
        """The active shards."""
        return [one for one in self._led.values() if one.phase is Phase.ACTIVE]

    @property
    def indexes(self) -> list[int]:
        """Of the partitions that are led here, including those being loaded."""
        return sorted(self._led)

    @property
    def loading_count(self) -> int:
        return sum(one.phase is Phase.LOADING for one in self._led.values())

    # -- leadership ------------------------------------------------------------------------

    def leadership_gained(self, log: PartitionLog, leader_epoch: LeaderEpoch) -> None:
        """Load the partition, unless it was led before: no other broker can have written to it."""
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
        """Waiting callers get NotCoordinator at once."""
        led = self._led.get(log.partition.partition)
        if led is not None and led.log is log:
            self._drop(led)
            self.context.deliver()

    def high_watermark_moved(self, log: PartitionLog) -> None:
        """Answer the requests that waited for it."""
        led = self._led.get(log.partition.partition)
        if led is None or led.log is not log:
            return
        if led.phase is _LOADING:
            self._activate_if_loaded(led)
        elif not led.is_draining:  # otherwise that call releases what is committed
            led.drain_effects(self.context.timestamps())
            self._after_drain(led)

    def _drop(self, led: LedShard[Machine]) -> None:
        if self._led.get(led.index) is led:
            del self._led[led.index]
        self._retry_at_ms.pop(led, None)
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
            return  # led by another broker by now, or being loaded again
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
            self._dependencies.timers.call_later(LOAD_RETRY_S, self._reload, led)

    def _reload(self, led: LedShard[Machine]) -> None:
        """Load from the start with a new machine: the state of the old one is unknown."""
        if led.phase is not Phase.DROPPED and not self._is_stopped:
            self._drop(led)
            self.leadership_gained(led.log, led.leader_epoch)
            self._led[led.index].deferred += led.deferred

    def _activate_if_loaded(self, led: LedShard[Machine]) -> None:
        if led.is_loaded:
            led.activate()
            self._after_drain(led)
            self._dependencies.on_active(led.index)

    # -- requests --------------------------------------------------------------------------

    def get(self, index: int) -> LedShard[Machine]:
        """The active shard; raises NotCoordinator or CoordinatorLoading."""
        led = self._led.get(index)
        if led is None:
            raise NotCoordinator
        led.check_active()
        return led

    def submit(
        self, index: int, call: ShardCall, caller: Caller, request: Any, *, is_gathered: bool
    ) -> None:
        """Pass a request to the shard of a partition; raises as `get`, all else is a reply.

        `is_gathered` is for requests whose writes may wait for others, and for those that may be
        decided before gathered writes are in the log.
        """
        led = self._led.get(index)
        if led is None:
            raise NotCoordinator
        try:
            led.submit(call, caller, request, is_gathered=is_gathered)
        finally:
            self._after_drain(led)

    def _after_drain(self, led: LedShard[Machine]) -> None:
        """After every call of a machine."""
        if led.has_gathered:
            self._gather(led)
        # If this shard is written at the end of the iteration, the timer is armed then.
        if led not in self._gathering or self._linger is not None:
            self._arm_for(led)
        self.context.deliver()

    def _gather(self, led: LedShard[Machine]) -> None:
        """Schedule the write of what the shard has gathered."""
        is_scheduled = bool(self._gathering)
        self._gathering[led] = None
        if is_scheduled:
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
                except Exception as error:  # noqa: BLE001 - the other shards must continue
                    end_if_fatal(error)
                    message = f"{self._dependencies.name} could not be written"
                    self._log_fault(message, batch.led, error)
        for led in gathering:
            self._arm_for(led)
        self.context.deliver()

    def call_each_steps(
        self,
        call: Callable[[LedShard[Machine], Timestamps], None],
        *,
        once_loaded: Callable[[Machine], None] | None = None,
    ) -> StepGenerator[None]:
        """Call every machine, in steps; those being loaded are passed to `once_loaded` then."""
        for led in list(self._led.values()):
            if led.phase is not _ACTIVE:
                if once_loaded is not None:
                    led.deferred.append(once_loaded)
                continue
            time = self.context.timestamps()
            led.write_gathered(time)
            call(led, time)
            led.drain_effects(time)
            self._after_drain(led)
            yield None

    # -- time ------------------------------------------------------------------------------

    def _arm_for(self, led: LedShard[Machine]) -> None:
        if led.phase is _ACTIVE:
            self._arm(led.due_ms())

    def _arm(self, due_ms: int) -> None:
        """Make the timer fire no later than then; firing too early does no harm."""
        if self._is_stopped or (self._timer is not None and self._timer_ms <= due_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = due_ms
        wait_ms = min(max(0, due_ms - self.context.timestamps().now_ms), WAIT_MAX_MS)
        self._timer = self._dependencies.timers.call_later(wait_ms / 1000, self._on_timer)

    def _on_timer(self) -> None:
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
        return max(led.due_ms(), self._retry_at_ms.get(led, 0))

    def _tick(self, led: LedShard[Machine], time: Timestamps) -> None:
        self._retry_at_ms.pop(led, None)
        try:
            led.tick(time)
        except InvariantViolated:
            raise
        except Exception as error:  # noqa: BLE001 - the other shards must continue
            end_if_fatal(error)
            self._retry_at_ms[led] = time.now_ms + TICK_RETRY_MS
            self._log_fault(f"timeouts of {self._dependencies.name} not handled", led, error)

    def _log_fault(self, message: str, led: LedShard[Machine], error: Exception) -> None:
        partition = str(led.log.partition)
        self.context.client_log.error(log, message, client="", partition=partition, error=error)

    def stop(self) -> None:
        """Cancel the timers; no request is answered any more."""
        self._is_stopped = True
        for handle in (self._timer, self._linger):
            if handle is not None:
                handle.cancel()
        self._to_load.clear()
