"""The application that runs while faults hit a cluster, and the check of what it was promised.

A writer and a reader run as processes in their own node for one *era*: a topic of its own, which at
the end is read completely and compared with everything that the two processes recorded.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from millstream.testing.chaos.cluster.client import ClientTask
from millstream.testing.chaos.cluster.processes import STOP_MAX_S, NodeProcess
from millstream.testing.chaos.log.reader import ChaosFailed
from millstream.testing.chaos.network.world import Node
from millstream.testing.history.checker import check_history
from millstream.testing.history.lines import HistoryReader
from millstream.testing.wait_until import wait_until

PROGRESS_MAX_S: Final = 60.0
"""After healing, or in a fault that must not matter, records are acknowledged within this time."""
FINISH_MAX_S: Final = 180.0
ANOMALIES_SHOWN_MAX: Final = 5


class ClientProcess(NodeProcess):
    """The writer, the reader, or the final read."""

    prints_ready_line = False

    def __init__(self, node: Node, directory: Path, kind: str, task: ClientTask) -> None:
        module = ["-m", "millstream.testing.chaos.cluster.client", kind, task.to_json()]
        super().__init__(node, directory, [sys.executable, *module])

    @property
    def is_over(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def finish(self, timeout_s: float) -> None:
        """Close its input and wait for a clean exit; raises ChaosFailed."""
        process = self._process
        if process is None or process.stdin is None:
            raise ChaosFailed(f"{self.node} has no client running")
        process.stdin.close()
        code = process.wait(timeout_s)
        self._clear_process()
        if code != 0:
            raise ChaosFailed(f"a client ended with exit code {code}\n{self.tail()}")


class EraFigures(NamedTuple):
    """The figures of an era."""

    acknowledged: int
    read: int
    gap_s: float
    """The longest time in which no record of some partition was acknowledged."""


class Load:
    """One era's clients and what they recorded."""

    def __init__(self, node: Node, directory: Path, task: ClientTask) -> None:
        self._node = node
        self._directory = directory
        self._task = task
        self.lines = HistoryReader()
        self._clients: dict[str, ClientProcess] = {}
        """All clients of the era, by name."""
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def topic(self) -> str:
        return self._task.topic

    def start(self) -> None:
        for kind in ("write", "read"):
            self._client(kind, kind).spawn()

    def _client(self, kind: str, name: str) -> ClientProcess:
        own = {"history": str(self._history_of(name)), "name": name}
        task = ClientTask(**{**self._task.__dict__, **own})
        made = ClientProcess(self._node, self._directory / name, kind, task)
        self._clients[name] = made
        return made

    def _history_of(self, name: str) -> Path:
        return self._directory / f"{name}.jsonl"

    def take(self) -> None:
        """Read what is new in the histories; raises ChaosFailed for an error in the application."""
        for name in self._clients:
            self.lines.take(self._history_of(name))
        if self.lines.errors:
            raise ChaosFailed(f"an error reached the application: {self.lines.errors[0]}")

    def marks(self) -> Mapping[int, int]:
        """How many records of each partition were acknowledged."""
        self.take()
        times = self.lines.acknowledged_at_s
        return {one: len(times[(self.topic, one)]) for one in range(self._task.partitions)}

    def wait_for(self, more: int, what: str, *, partitions: Iterable[int] | None = None) -> None:
        """Wait until `more` records are acknowledged in each of the partitions; None for all."""
        before = self.marks()
        chosen = list(before if partitions is None else partitions)

        def is_acknowledged() -> bool:
            now = self.marks()
            for client in self._clients.values():
                client.check_alive()
            return all(now[one] >= before[one] + more for one in chosen)

        wait_until(
            is_acknowledged, f"records acknowledged {what}", timeout_s=PROGRESS_MAX_S, pause_s=0.05
        )

    def read_late(self, count: int, meanwhile: Callable[[], None]) -> None:
        """Let `count` consumers read everything from the start while `meanwhile` is called."""
        names = [f"late-{len(self._clients) + number}" for number in range(count)]
        late = [self._client("late", name) for name in names]
        for client in late:
            client.spawn()

        def is_read() -> bool:
            meanwhile()
            return all(client.is_over for client in late)

        what = "late consumers have read everything"
        wait_until(is_read, what, timeout_s=FINISH_MAX_S, pause_s=0.01)
        self.take()
        for client in late:
            client.finish(STOP_MAX_S)

    def finish(self) -> EraFigures:
        """Let both clients end, read everything, compare. Raises ChaosFailed."""
        writer, reader = (self._clients[name] for name in ("write", "read"))
        writer.finish(FINISH_MAX_S)
        self.take()
        wait_until(self._is_all_read, "the reader has it all (I-33)", timeout_s=PROGRESS_MAX_S)
        reader.finish(STOP_MAX_S)
        last = self._client("last", "last")
        last.spawn()
        last.finish(FINISH_MAX_S)
        self.take()
        self._check()
        return EraFigures(self.lines.acknowledged, sum(self.lines.read.values()), self.gap_s())

    def _is_all_read(self) -> bool:
        self.take()
        acknowledged = self.lines.acknowledged_at_s
        read = self.lines.read
        return all(read[("read", place)] >= len(times) for place, times in acknowledged.items())

    def _check(self) -> None:
        if len(self.lines.history.finals) != self._task.partitions:
            raise ChaosFailed("not all partitions were read in the end")
        found = self.lines.resolve_missing_offsets() + check_history(self.lines.history)
        if found:
            shown = [f"{one.kind}: {one.text}" for one in found[:ANOMALIES_SHOWN_MAX]]
            raise ChaosFailed("\n".join([f"{len(found)} anomalies", *shown]))

    def gap_s(self) -> float:
        times = self.lines.acknowledged_at_s.values()
        return max((later - one for line in times for one, later in pairwise(line)), default=0.0)

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
