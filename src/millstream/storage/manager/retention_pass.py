"""Retention in one log directory: all its logs decide, one checkpoint is stored, then files go."""

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
from millstream.runtime.scheduler import StepGenerator, in_parts
from millstream.storage import names
from millstream.storage.directories.log_directory import LogDirectory
from millstream.storage.log.log import Log
from millstream.storage.log_steps import LOGS_PER_TURN, as_now, remove_segments_steps


def retention_steps_of(
    directory: LogDirectory, logs: Sequence[Log], now_ms: TimestampMs
) -> StepGenerator[int]:
    """Remove what retention allows, in steps; how many segments. Raises as `store` does."""
    moved: list[Log] = []
    for part in in_parts(logs, LOGS_PER_TURN):
        for log in part:
            try:
                plan = log.plan_retention(now_ms)
                if plan.reasons:
                    log.begin_retention(plan)
                    moved.append(log)
            except (CorruptRecords, DiskFull, TooManyOpenFiles, UnknownPartition):
                continue  # it keeps what it has; the others have their turn
            except StorageFailed:
                if log.owner.failure is not None:
                    raise
        if len(part) == LOGS_PER_TURN:
            yield None
    moved = [log for log in moved if not log.is_released and log.owner is directory]
    starts = {log.partition: log.log_start for log in moved}
    try:
        if starts:
            yield partial(directory.store_current, names.LOG_STARTS, starts, as_now(moved))
    except DiskFull:
        return sum(log.make_room() for log in moved if not log.is_released)
    removed = 0
    for log in moved:
        removed += yield from remove_segments_steps(log)
    return removed
