"""What works on many logs have in common: how much at a time, and what counts when they go on."""

from collections.abc import Callable, Sequence
from typing import Final

from millstream.model.ids import TopicPartition
from millstream.runtime.scheduler import StepGenerator
from millstream.storage.log.log import Log

LOGS_PER_TURN: Final = 64
"""Logs made, deleted or shortened between two turns of others: about two milliseconds."""

SEGMENTS_PER_TURN: Final = 50
"""Segments of one log that are taken away between two turns of others."""


def remove_segments_steps(log: Log) -> StepGenerator[int]:
    """Of a log whose new start is stored; how many. Each is a few renames."""
    removed = count = 0
    while not log.is_released:
        count = log.remove_segments_below_start(SEGMENTS_PER_TURN)
        removed += count
        if count < SEGMENTS_PER_TURN:
            break
        yield None
    return removed


def as_now(logs: Sequence[Log]) -> Callable[[TopicPartition], bool]:
    """Whether what is noted of a log still counts, asked by a job that runs later.

    A log that was truncated, moved, closed or deleted since is another one. The job looks at
    numbers that the owner changes before it stores anything of its own.
    """
    noted = {log.partition: (log, log.truncations) for log in logs}

    def is_current(partition: TopicPartition) -> bool:
        log, truncations = noted[partition]
        return not log.is_released and log.truncations == truncations

    return is_current
