"""Wakes the fetches that wait for partitions to move: soon, and once for all that moved."""

from typing import Protocol

from millstream.replication.deadlines import Deadlines
from millstream.replication.readable import ReadableReplica
from millstream.runtime.timers import Timers


class NetworkIterations(Protocol):
    """The event-loop iterations that bring requests; each ends with `wake_readers`."""

    def is_awake(self) -> bool:
        """Whether an iteration is running: then no timer is needed to wake readers."""

    def flush_ready(self) -> None:
        """Send responses that became ready outside of an iteration."""


class NoNetwork:
    """Without a network only timers wake readers."""

    def is_awake(self) -> bool:
        return False

    def flush_ready(self) -> None:
        pass


class ReaderWaker:
    """Wakes the readers of all partitions of a broker; has the deadlines of what waits."""

    def __init__(self, iterations: NetworkIterations | None) -> None:
        iterations = iterations if iterations is not None else NoNetwork()
        self._is_wake_coming = iterations.is_awake
        self._flush_ready = iterations.flush_ready
        self._moved: dict[ReadableReplica, None] = {}
        self._timers: Timers | None = None
        self._deadlines: Deadlines | None = None
        self._is_wake_due = False

    def deadlines(self, timers: Timers) -> Deadlines:
        """The deadlines of all waiting requests; one object for the broker."""
        if self._deadlines is None:
            self._timers = timers
            self._deadlines = Deadlines(timers)
        return self._deadlines

    def stop_waiting(self) -> None:
        """No client is left to be answered (I-42)."""
        if self._deadlines is not None:
            self._deadlines.close()

    def _wake(self, partition: ReadableReplica) -> None:
        self._moved[partition] = None
        if self._is_wake_due or self._is_wake_coming():
            return
        if self._timers is not None:
            # Soon, not now: a request that writes to several partitions, or the next one that has
            # already arrived, may have more for the same reader.
            self._is_wake_due = True
            self._timers.call_later(0.0, self._wake_late)

    def _wake_late(self) -> None:
        self._is_wake_due = False
        self.wake_readers()
        self._flush_ready()

    def wake_readers(self) -> None:
        """Wake the fetches that wait for partitions which moved since the last call."""
        while self._moved:
            moved, self._moved = self._moved, {}
            for partition in moved:
                if partition.follower_readers:
                    for reader, mark in list(partition.follower_readers.items()):
                        reader.progressed(mark)
                if partition.has_updates:
                    partition.has_updates = False
                    for reader, mark in list(partition.readers.items()):
                        reader.progressed(mark)
