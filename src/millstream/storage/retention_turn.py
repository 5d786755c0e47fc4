"""Retention in one log directory: all its logs decide, one checkpoint is stored, then files go."""

from collections.abc import Iterable

from millstream.model.errors import CorruptRecords, DiskFull, TooManyOpenFiles
from millstream.model.ids import TimestampMs
from millstream.storage import names
from millstream.storage.log import Log
from millstream.storage.log_directory import LogDirectory


def run_retention_in(directory: LogDirectory, logs: Iterable[Log], now_ms: TimestampMs) -> int:
    """Remove what retention allows; how many segments. Raises as `LogDirectory.store` does."""
    moved: list[Log] = []
    for log in logs:
        try:
            plan = log.plan_retention(now_ms)
            if plan.reasons:
                log.begin_retention(plan)
                moved.append(log)
        except (CorruptRecords, DiskFull, TooManyOpenFiles):
            continue  # it keeps what it has; the others have their turn
    try:
        directory.store(names.LOG_STARTS, {log.partition: log.log_start for log in moved})
    except DiskFull:
        return sum(log.make_room() for log in moved)
    return sum(log.remove_segments_below_start() for log in moved)
