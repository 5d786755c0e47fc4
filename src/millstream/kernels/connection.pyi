"""One client's connection without I/O: frames in, answers out in request order. For both twins.

Produce requests (versions 3-13) that are eligible for the fast path in every partition are staged
into their slots without Python; everything else comes out of `next_request`. A request is eligible
when every check of `Log.append_as_leader` would pass and nothing but an append would happen: then,
and only then, fast and slow path do the same. The caller writes (`SlotTable.write_staged`) before
it dispatches a request, and at the end of an event-loop iteration.
"""

from collections.abc import Sequence
from typing import Any

from millstream.kernels.errors import FrameError as FrameError
from millstream.kernels.slots import SlotTable

__all__ = ["Connection", "FrameError"]

class Connection:
    """See the module's docstring."""

    owner: Any
    """Set by the shell, to get from a connection to its own object."""
    allows_fast_path: bool
    """Whether the fast path may be taken. False: not yet authenticated, or under a quota."""
    is_direct: bool
    """Whether `EpollShell` may send for it; the shell's owner clears this while it has a queue."""
    last_active_s: float
    """When `EpollShell` last read something from it."""
    unsent_bytes: int
    """What the shell has taken and could not send yet. It counts against `output_bytes_max`, as do
    the output, and answers that wait for earlier ones."""

    def __init__(
        self,
        table: SlotTable,
        *,
        frame_bytes_max: int,
        in_flight_max: int,
        output_bytes_max: int = 1_048_576,
    ) -> None: ...
    def get_buffer(self, size_hint: int) -> memoryview:
        """Where the next bytes go. Grows with what was received, not with what is claimed.

        Bytes of which there is still a view are never overwritten.
        """

    def received(self, size: int) -> None:
        """`size` bytes were put into the last buffer."""

    @property
    def has_request(self) -> bool:
        """Whether a request for `next_request` was found while the input was walked."""

    def trim(self) -> None:
        """Return the buffer if everything in it was walked: there may have been a view of it when
        that was tried last.
        """

    def next_request(
        self, wall_ms: int
    ) -> tuple[int, int, int, int, bytes | None, memoryview] | None:
        """Stage eligible produce requests up to the next other request, and return that.

        (number, api key, api version, correlation id, client id, body). None: no whole frame is
        left, or `is_blocked`. Raises FrameError for bytes that are no request, every time.
        """

    def answer(self, number: int, parts: Sequence[Any]) -> None:
        """The whole frame of request `number`: bytes, and other objects with `size_bytes`."""

    def answer_nothing(self, number: int) -> None: ...
    def take_output(self) -> list[Any]:
        """What can be sent now. Small neighbours are one part; other objects are as they were."""

    def drop_output(self) -> list[Any]:
        """Close: all parts that will not be sent. Later answers are ignored, the input is
        released.
        """

    @property
    def output_bytes(self) -> int:
        """Bytes that `take_output` would return."""

    @property
    def late_bytes(self) -> int:
        """Of answers that wait for earlier ones, what is in memory: not ranges of files."""

    @property
    def in_flight(self) -> int:
        """Requests that were walked and whose answers are not in the output."""

    @property
    def is_blocked(self) -> bool:
        """Too many in flight, or too much output: `next_request` waits until that is less."""

    @property
    def buffer_bytes(self) -> int:
        """The size of the buffer for input: up to twice of what was received."""

    @property
    def resident_bytes(self) -> int:
        """What it takes in memory: of a very large buffer only what was received."""

    @property
    def unread_bytes(self) -> int:
        """Bytes received and not yet walked."""
