"""The matrix of kills: every process that can die, at every step of a micro-batch."""

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Step(Enum):
    """Where in a micro-batch a query is, in the order of a batch's life."""

    IDLE = "between batches"
    END = "before latestOffset"
    LOGGED = "offset log written, before the plan"
    RELEASE = "at the source's commit"
    READING = "in the middle of a task's read"
    READ = "read to the end, before the task ends"
    WRITING = "in the middle of a task's write"
    UNFLUSHED = "all rows handed over, before the flush"
    WRITTEN = "all rows stored, before the task reports"
    REPORTED = "tasks done, before the sink's commit"
    COMMITTED = "sink committed, before the commit log"
    MANIFEST = "file sink's manifest written, before the commit log"

    @property
    def is_within_batch(self) -> bool:
        """The batch is in the offset log and not in the commit log."""
        return self not in (Step.IDLE, Step.END)

    @property
    def is_in_task(self) -> bool:
        return self in TASK_STEPS


TASK_STEPS: Final = (Step.READING, Step.READ, Step.WRITING, Step.UNFLUSHED, Step.WRITTEN)


class Victim(Enum):
    """What is killed."""

    DRIVER = "driver"
    """The Python program with its JVM."""
    WORKER = "worker"
    """The Python process that is at the step: of a task, of the source or of the sink's commit."""
    EXECUTOR = "executor"
    """A JVM of a standalone cluster that runs tasks."""
    BROKER = "broker"


class Sink(Enum):
    """Where the rows go."""

    TOPIC = "topic"
    FILES = "files"
    """Parquet by Spark's file sink, which is exactly-once: so the whole query must be too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kill of the matrix."""

    victim: Victim
    sink: Sink
    step: Step
    is_first_batch: bool = False
    """Of a new query that starts at `latest`: only its own offset log knows where it began."""

    def __str__(self) -> str:
        first = " of the first batch" if self.is_first_batch else ""
        return f"{self.victim.value} / {self.sink.value} / {self.step.value}{first}"


_STEPS: Final = {
    Sink.TOPIC: tuple(step for step in Step if step is not Step.MANIFEST),
    Sink.FILES: (
        Step.IDLE,
        Step.END,
        Step.LOGGED,
        Step.RELEASE,
        Step.READING,
        Step.READ,
        Step.MANIFEST,
    ),
}
# Not before the offset log: a query that dies there has never begun, and begins at the latest
# offset when it is started again.
_FIRST_STEPS: Final = {
    Sink.TOPIC: (Step.LOGGED, Step.READING, Step.UNFLUSHED, Step.COMMITTED),
    Sink.FILES: (Step.LOGGED, Step.READ, Step.MANIFEST),
}


def matrix() -> list[Cell]:
    """Every kill once."""
    cells = []
    for sink, steps in _STEPS.items():
        for victim in Victim:
            cells += [
                Cell(victim=victim, sink=sink, step=step)
                for step in steps
                if _has_victim(victim, step)
            ]
        cells += [
            Cell(victim=Victim.DRIVER, sink=sink, step=step, is_first_batch=True)
            for step in _FIRST_STEPS[sink]
        ]
    return cells


def _has_victim(victim: Victim, step: Step) -> bool:
    """The JVM writes the manifest, without a worker. Executors run tasks and nothing else."""
    if victim is Victim.EXECUTOR:
        return step.is_in_task
    return not (victim is Victim.WORKER and step is Step.MANIFEST)
