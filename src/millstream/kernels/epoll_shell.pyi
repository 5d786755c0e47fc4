"""The system calls of unencrypted sockets around the connection core. For both twins.

An epoll of its own, which an event loop watches as one descriptor. Each iteration reads every ready
socket, stages what the fast path takes and reports the rest; after the write the small answers
leave the same way. Nothing but `wait` blocks, and no socket is owned: its owner calls `forget` and
then closes it.
"""

from typing import Final

from millstream.kernels.connection import Connection
from millstream.kernels.slots import SlotTable

__all__ = ["CONNECTIONS_READY", "ENDED", "LOOP_READY", "REQUESTS", "WRITABLE", "EpollShell"]

REQUESTS: Final = 1
"""Call `next_request`: it has one, raises or is blocked; or an unfinished one has grown large."""
WRITABLE: Final = 2
ENDED: Final = 4
"""Closed by the client, or failed with the error number that is reported."""
CONNECTIONS_READY: Final = 1
"""A connection is ready: call `read_ready`."""
LOOP_READY: Final = 2
"""The event loop's own descriptors are ready."""

class EpollShell:
    """See the module's docstring."""

    def __init__(self, table: SlotTable, *, unread_bytes_threshold: int = 262_144) -> None:
        """`unread_bytes_threshold`: an unfinished request of that size is reported as REQUESTS."""

    def fileno(self) -> int: ...
    def add(self, connection: Connection, descriptor: int) -> None:
        """Watch a non-blocking socket for reading; its connection becomes direct."""

    def watch(self, connection: Connection, *, reading: bool, writing: bool) -> None: ...
    def forget(self, connection: Connection) -> None:
        """Stop watching; before the socket is closed, or another could get its number."""

    def close(self) -> None: ...
    def watch_loop(self, descriptor: int) -> None:
        """Let `wait` wait for the epoll of an event loop, too."""

    def wait(self, timeout_ms: int) -> int:
        """Block until something is ready: CONNECTIONS_READY, LOOP_READY or both.

        A negative timeout waits forever. 0 after the timeout or a signal. Where short
        waits were the rule it polls briefly before it sleeps. Other threads run meanwhile.
        """

    def read_ready(self, now_s: float, wall_ms: int) -> list[tuple[Connection, int, int]]:
        """Read what has arrived and stage what the fast path takes.

        The connections that need more than that: (connection, REQUESTS | WRITABLE | ENDED, error
        number). Requests of one are still in order: what is reported was not walked yet.

        For connections with 256 KiB and more of an unfinished request together some 2 MiB are read
        or moved in one call, and 1 MiB of each: what is left fires again, and is first then.
        """

    def plan(
        self,
        connection: Connection,
        parts: list[tuple[bytes | None, int, int, int]],
        *,
        skip: int,
        is_all: bool,
    ) -> bool:
        """Send these in order, now and whenever the socket can take more; False when there is
        nothing to wait for: all of it was sent, or Python must decide (a page that is not in the
        cache, an error), which the next send finds out.

        With True WRITABLE is not reported before that; watch for writing. Each part is (bytes,
        -1, 0, size), or (None, a file's descriptor, position, size); the files stay open until
        `take_planned` or `forget`. `skip`: bytes of the first part that were sent. `is_all`:
        nothing follows the last. The plain twin sends nothing.
        """

    def take_planned(self, connection: Connection) -> int:
        """Drop the plan; returns how many of its bytes were sent."""

    def send_ready(self) -> list[Connection]:
        """Instead of `SlotTable.take_ready`: send the small output of direct connections.

        Returns the connections it does not serve: not direct, with large parts or file ranges, or
        whose socket takes no more (or fails, which the next send raises).
        """
