"""What a task of a sink tells the driver.

On its own, as the process that commits needs nothing else of what writes: Arrow and the client
would be most of what it loads.
"""

from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlace:
    """Where in a job a task is: the same when a batch is run again, except for `attempt`."""

    task: int
    attempt: int
    query_id: str | None = None
    """Of a stream; stays over restarts."""
    batch_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWritten(WriterCommitMessage):
    """What a task has stored."""

    place: TaskPlace
    records: dict[str, int] = field(default_factory=dict)
    """By topic."""

    @property
    def record_count(self) -> int:
        return sum(self.records.values())
