"""The interface of a shard: the pure machine of one partition of an internal topic."""

from typing import Any, Protocol, TypeVar

from typing_extensions import Buffer

from millstream.model.errors import OperatingError
from millstream.model.ids import Offset
from millstream.shards.effects import Caller, Write


class ShardMachine(Protocol):
    """Decides without I/O and without a clock; its output is `effects`."""

    @property
    def skipped_count(self) -> int:
        """Records that `load` has skipped because their type is unknown."""

    def load(self, records: Buffer) -> None:
        """Whole batches of the log, in order. Raises MalformedRecords and OperatingError."""

    def on_loaded(self, *, now_ms: int, wall_ms: int) -> None:
        """The whole log has been applied: start the sessions."""

    def unload(self) -> list[object]:
        """The tokens of all waiting callers that are not in a write; the machine is dead."""

    def on_appended(self, write: Write, last_offset: Offset, *, now_ms: int, wall_ms: int) -> None:
        """The write is in the log; its last entry is at `last_offset`."""

    def on_refused(self, write: Write, error: OperatingError, *, now_ms: int) -> None:
        """The log refused it; the shell answers its replies."""

    def on_high_watermark(self, high_watermark: Offset) -> None:
        """Everything below it is committed."""

    def on_written(self, write: Write, *, now_ms: int) -> None:
        """The high watermark has passed the write."""

    def next_deadline_ms(self) -> int | None:
        """When to call `tick`."""

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        """Handle the deadlines that have passed."""

    def expire(self, *, now_ms: int, wall_ms: int) -> bool:
        """Do a step of removing what has expired; True if there is more to do now."""


Machine = TypeVar("Machine", bound=ShardMachine)


class ShardCall(Protocol):
    """A request method of a machine's class, such as `Shard.join_group`."""

    def __call__(
        self, machine: Any, caller: Caller, request: Any, /, *, now_ms: int, wall_ms: int
    ) -> None:
        """Let the machine decide."""
