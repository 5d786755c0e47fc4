"""What a task of a sink reports to the driver.

In a module of its own, as the process that commits needs no other part of the sink: Arrow and the
client would be most of what it loads.
"""

from dataclasses import dataclass, field

from pyspark.sql.datasource import WriterCommitMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskIdentity:
    """Identifies a task of a job: the same when a batch is run again, except for `attempt`."""

    task: int
    attempt: int
    query_id: str | None = None
    """Of a stream; stays the same over restarts."""
    batch_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWritten(WriterCommitMessage):
    """What a task has stored."""

    identity: TaskIdentity
    records: dict[str, int] = field(default_factory=dict)
    """By topic."""

    @property
    def record_count(self) -> int:
        return sum(self.records.values())
