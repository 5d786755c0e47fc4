"""Periodic background tasks of a broker: retention, flushes, checkpoints, log cleaning."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import GeneratorType
from typing import Any, Final, NamedTuple

from millstream.broker.configs.broker_configs import BrokerConfigs
from millstream.controller.image import ImageChange
from millstream.model.ids import TopicPartition
from millstream.model.invariant import InvariantViolated
from millstream.observe import logs
from millstream.observe.broker_metrics import BrokerMetrics
from millstream.observe.client_log import ClientLog
from millstream.observe.logs import get_logger
from millstream.observe.loop_lag import LoopLagSampler
from millstream.runtime.clock import Clock
from millstream.runtime.fatal import end_if_fatal
from millstream.runtime.scheduler import CooperativeScheduler, StepGenerator, chunked
from millstream.runtime.serving_clock import ServingClock
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.manager.log_manager import LogManager
from millstream.storage.moves.directory_move import MoveEnd, MoveReport
from millstream.storage.recovery.loader import LoadReport
from millstream.wire.errors import ErrorCode

log = get_logger("millstream.broker.upkeep")

FLUSH_CHECK_S: Final = 1.0
"""The precision of `flush.ms`; Kafka's scheduler checks every few seconds."""
PRODUCER_CHECK_S: Final = 600.0
DELETION_CHECK_S: Final = 0.5
"""The precision of `file.delete.delay.ms`."""
FULL_CHECK_S: Final = 1.0
"""Until a full disk is reported, and, in twice that, that it has room again."""
DIRECTORY_CHECK_S: Final = 1.0
"""A log directory that was removed or unmounted is detected within this time. Kafka detects it with
its next checkpoint, within five seconds."""
ROOM_CHECK_S: Final = 5.0
"""Until a partition that the disk had no room for is created, once there is room again."""
FOREVER_S: Final = 7 * 86_400.0
"""The longest wait of a timer; settings of `Long.MAX_VALUE` mean never."""


class Duty(NamedTuple):
    """A periodic task."""

    interval_s: Callable[[], float]
    turn: Callable[[], object]


class Upkeep:
    """Runs the periodic tasks. An error in one is logged, and it runs again when due."""

    def __init__(
        self,
        logs: LogManager,
        configs: BrokerConfigs,
        metrics: BrokerMetrics,
        *,
        clock: Clock,
        serving: ServingClock,
        scheduler: CooperativeScheduler,
        flush_ready: Callable[[], None],
        duties: Mapping[str, Duty],
    ) -> None:
        """`flush_ready` sends answers that became ready in a task; `duties` are the broker's other
        tasks.
        """
        self._duties = duties
        self._clock = clock
        self._serving = serving
        self._scheduler = scheduler
        self._flush_ready = flush_ready
        self._reported_directories: set[str] = set()
        self._reported_partitions: set[tuple[bool, str, TopicPartition]] = set()
        self._reported_full: set[str] = set()
        self._logs = logs
        self._configs = configs
        self._metrics = metrics
        self._handles: dict[str, asyncio.TimerHandle] = {}
        self._timed_duties: dict[str, Callable[[], None]] = {}
        self._rerun: set[str] = set()
        self._is_stopped = False
        self._lag: LoopLagSampler | None = None

    def start(self) -> None:
        """Start every task; the interval of each is read again before every run."""
        in_s = self._configs_seconds
        self._pace()
        self._reported_directories = {
            one.path for one in self._logs.directories if one.failure is not None
        }
        self._every("flush", lambda: FLUSH_CHECK_S, self._logs.flush_due)
        self._every(
            "retention", lambda: in_s("log.retention.check.interval.ms"), self._retention_steps
        )
        self._every(
            "checkpoints",
            lambda: in_s("log.flush.offset.checkpoint.interval.ms"),
            self._logs.store_checkpoints_steps,
        )
        self._every("cleaner", lambda: in_s("log.cleaner.backoff.ms"), self._clean)
        self._every("old files", lambda: DELETION_CHECK_S, self._logs.deferred_deletion.run)
        self._every("log lines", lambda: 1.0, logs.flush)
        self._every("directories", lambda: DIRECTORY_CHECK_S, self._logs.check_directories_steps)
        self._every("failures", lambda: 1.0, self._report_failures)
        self._every("full disks", lambda: FULL_CHECK_S, self._watch_full)
        self._every("waiting", lambda: 1.0, self._expire_waiting)
        self._every("producers", lambda: PRODUCER_CHECK_S, self._expire_producers)
        for name, one in self._duties.items():
            self._every(name, one.interval_s, one.turn)
        self._lag = LoopLagSampler(
            asyncio.get_running_loop(), self._metrics.loop_lag, on_sample=self._serving.tick
        )
        self._lag.start()

    def stop(self) -> None:
        self._is_stopped = True
        if self._lag is not None:
            self._lag.stop()
            self._serving.stop()
        for handle in self._handles.values():
            handle.cancel()

    def run_now(self) -> None:
        """A setting changed: check at once whether something is due."""
        self._pace()
        for name in ("flush", "retention", "cleaner", "producers"):
            handle = self._handles.pop(name, None)
            if handle is not None:
                handle.cancel()
                self._timed_duties[name]()
            else:
                self._rerun.add(name)  # it is running; it runs once more after that

    def _configs_seconds(self, key: str) -> float:
        return self._configs.get_int(key) / 1000

    def _every(
        self, name: str, interval_s: Callable[[], float], duty: Callable[[], object]
    ) -> None:
        def turn() -> None:
            if self._is_stopped:
                return
            self._handles.pop(name, None)
            try:
                work = duty()
            except InvariantViolated:
                raise
            except Exception as error:  # noqa: BLE001 - the next run may succeed
                end_if_fatal(error)
                log.error("scheduled task failed", task=name, error=error)
                work = None
            if isinstance(work, GeneratorType):
                work = self._scheduler.run(work, name=name)
            if isinstance(work, Coroutine):
                self._scheduler.spawn(finish(work), f"upkeep: {name}")
            else:
                plan()

        async def finish(work: Coroutine[Any, Any, object]) -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - as above
                end_if_fatal(error)
                log.error("scheduled task failed", task=name, error=error)
            if not self._is_stopped:
                plan()

        def plan() -> None:
            wait_s = max(0.001, min(interval_s(), FOREVER_S))
            if name in self._rerun:
                self._rerun.discard(name)
                wait_s = 0.0
            self._handles[name] = asyncio.get_running_loop().call_later(wait_s, turn)

        self._timed_duties[name] = turn
        plan()

    def _retention_steps(self) -> StepGenerator[None]:
        removed = yield from self._logs.retention_steps()
        if removed:
            log.info("segments removed by retention", segments=removed)

    def _pace(self) -> None:
        """Apply the rate limits of background work, also to work in progress."""
        self._logs.cleaner.throttle.bytes_per_s = self._configs.cleaner_limits().bytes_per_s
        self._logs.moves.throttle.bytes_per_s = self._configs.move_bytes_per_s()

    def _clean(self) -> None:
        if self._configs.get_bool("log.cleaner.enable"):
            self._logs.run_cleaner()

    def _report_failures(self) -> None:
        """Log each failed directory, and each failed or damaged partition, once."""
        for one in self._logs.directories:
            if one.failure is not None and one.path not in self._reported_directories:
                self._reported_directories.add(one.path)
                log.error("log directory failed", directory=one.path, cause=str(one.failure))
        self._report_partitions()

    def _report_partitions(self) -> None:
        found = {
            (is_failed, one.path, name): cause
            for one in self._logs.directories
            for is_failed, causes in (
                (True, one.failed_partitions),
                (False, one.damaged_partitions),
            )
            for name, cause in list(causes.items())
        }
        self._reported_partitions &= found.keys()
        for key in found.keys() - self._reported_partitions:
            self._reported_partitions.add(key)
            is_failed, path, name = key
            facts = {"partition": str(name), "directory": path, "cause": found[key]}
            if is_failed:
                log.error("partition failed", **facts)
            else:
                log.error("records of a partition are damaged", **facts)

    def _watch_full(self) -> StepGenerator[None] | None:
        """Log once when a disk is full, however many writes it refuses, and once at the end."""
        full = [one for one in self._logs.directories if one.is_full]
        return self._watch_full_steps(full) if full else None

    def _watch_full_steps(self, full: Sequence[LogDirectory]) -> StepGenerator[None]:
        for one in full:
            room = one.room
            if one.path not in self._reported_full:
                self._reported_full.add(one.path)
                log.error(
                    "log directory full; refusing writes",
                    directory=one.path,
                    free_bytes=room.free_bytes,
                )
            yield one.check_room
            if not room.is_full:
                self._reported_full.discard(one.path)
                log.info(
                    "log directory has space again; accepting writes",
                    directory=one.path,
                    free_bytes=room.free_bytes,
                    refused_writes=room.refused_in_episode,
                )

    def _expire_waiting(self) -> None:
        """Answer requests of the connection core whose time limit has passed."""
        now_ms = self._clock.wall_ms()
        for one in self._logs.logs_with_waiting_requests():
            if one.slot.expire_waiting(now_ms, ErrorCode.REQUEST_TIMED_OUT):
                self._flush_ready()

    def _expire_producers(self) -> None:
        self._logs.expire_producers()


def log_end_of_move(client_log: ClientLog, report: MoveReport) -> None:
    """Log how a move ended: the client was answered when it began."""
    has_failed = report.end not in (MoveEnd.MOVED, MoveEnd.CANCELLED)
    client_log.change(
        log,
        "partition move failed" if has_failed else "partition move ended",
        level=logging.WARNING if has_failed else logging.INFO,
        partition=str(report.partition),
        directory=report.target,
        outcome=report.end.value,
        detail=report.detail,
    )


def log_loaded(partition: TopicPartition, loaded: LoadReport) -> None:
    """Log what opening the partition's log found wrong."""
    for name in loaded.set_aside:
        log.warning(
            "segment file set aside: it does not continue the log",
            partition=str(partition),
            file=name,
        )
    if loaded.has_lost:
        is_committed = loaded.log_end < loaded.stored_high_watermark
        (log.error if is_committed else log.warning)(
            "recovery removed records from the end of a log",
            partition=str(partition),
            from_offset=loaded.log_end,
            to_offset=loaded.log_end + loaded.lost_records,
            records=loaded.lost_records,
            bytes=loaded.cut_bytes,
            high_watermark=loaded.stored_high_watermark,
            reason=loaded.cut_reason.text,
        )


def log_changes_steps(client_log: ClientLog, change: ImageChange) -> StepGenerator[None]:
    """Log what clients changed, on every broker."""
    for part in chunked(change.created):
        for topic in part:
            count = len(topic.partitions)
            client_log.change(log, "topic created", topic=topic.name, partitions=count)
        yield None
    for part in chunked(change.deleted):
        for topic in part:
            client_log.change(log, "topic deleted", topic=topic.name)
        yield None
    for grown in change.grown:
        count = len(grown.topic.partitions)
        client_log.change(log, "partitions added", topic=grown.topic.name, partitions=count)
    for topic in change.reconfigured:
        settings = dict(topic.configs)
        client_log.change(log, "topic settings changed", topic=topic.name, settings=settings)
    if change.brokers_reconfigured:
        client_log.change(log, "broker or group settings changed")
