"""Retention in one log directory: plan for all logs, store one checkpoint, delete files."""

from collections.abc import Sequence
from functools import partial

from millstream.model.errors import (
    CorruptRecords,
    DiskFull,
    StorageFailed,
    TooManyOpenFiles,
    UnknownPartition,
)
from millstream.model.ids import TimestampMs
from millstream.runtime.scheduler import StepGenerator, chunked
from millstream.storage import names
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.log.log import Log
from millstream.storage.log_steps import LOGS_PER_TURN, make_current_check, remove_segments_steps


def retention_steps_of(
    directory: LogDirectory, logs: Sequence[Log], now_ms: TimestampMs
) -> StepGenerator[int]:
    """Delete what retention allows, in steps; how many segments. Raises as `store` does."""
    moved: list[Log] = []
    for part in chunked(logs, LOGS_PER_TURN):
        for log in part:
            try:
                plan = log.plan_retention(now_ms)
                if plan.reasons:
                    log.begin_retention(plan)
                    moved.append(log)
            except (CorruptRecords, DiskFull, TooManyOpenFiles, UnknownPartition):
                continue  # it keeps what it has; the others go on
            except StorageFailed:
                if log.owner.failure is not None:
                    raise
        if len(part) == LOGS_PER_TURN:
            yield None
    moved = [log for log in moved if not log.is_released and log.owner is directory]
    starts = {log.partition: log.log_start for log in moved}
    try:
        if starts:
            yield partial(
                directory.store_current, names.LOG_STARTS, starts, make_current_check(moved)
            )
    except DiskFull:
        return sum(log.make_room() for log in moved if not log.is_released)
    removed = 0
    for log in moved:
        removed += yield from remove_segments_steps(log)
    return removed
