"""What work on many logs has in common: how much per step, and what is still valid later."""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.model.ids import TopicPartition
from millstream.runtime.scheduler import StepGenerator
from millstream.storage.log.log import Log

LOGS_PER_TURN: Final = 64
"""Logs created, deleted or shortened in one step: about two milliseconds."""

SEGMENTS_PER_TURN: Final = 50
"""Segments of one log that are removed in one step."""


def remove_segments_steps(log: Log) -> StepGenerator[int]:
    """Remove segments of a log whose new start is stored; how many. Each is a few renames."""
    removed = count = 0
    while not log.is_released:
        count = log.remove_segments_below_start(SEGMENTS_PER_TURN)
        removed += count
        if count < SEGMENTS_PER_TURN:
            break
        yield None
    return removed


def make_current_check(logs: Sequence[Log]) -> Callable[[TopicPartition], bool]:
    """A function with which a later job checks whether what was noted of a log is still valid.

    It is not once the log was truncated, moved, closed or deleted. The check reads numbers that
    the owner changes before it stores anything itself.
    """
    noted = {log.partition: (log, log.truncations) for log in logs}

    def is_current(partition: TopicPartition) -> bool:
        log, truncations = noted[partition]
        return not log.is_released and log.truncations == truncations

    return is_current
