"""What the shell asks of a shard: the pure machine of one partition of an internal topic."""

from typing import Any, Protocol, TypeVar

from typing_extensions import Buffer

from millstream.model.errors import OperatingError
from millstream.model.ids import Offset
from millstream.shards.effects import Caller, Write


class ShardMachine(Protocol):
    """Decides without I/O and without a clock; see `effects` for what it hands out."""

    @property
    def skipped_count(self) -> int:
        """Records that `load` has passed over because their kind is not known here."""

    def load(self, records: Buffer) -> None:
        """Whole batches of the log, in order. Raises MalformedRecords and OperatingError."""

    def loaded(self, *, now_ms: int, wall_ms: int) -> None:
        """All that was in the log has been applied: sessions begin."""

    def unload(self) -> list[object]:
        """The tokens of all callers that wait and are not in a write; the machine is dead."""

    def appended(self, write: Write, last_offset: Offset, *, now_ms: int, wall_ms: int) -> None:
        """The log has taken the write; its last entry is at `last_offset`."""

    def refused(self, write: Write, error: OperatingError, *, now_ms: int) -> None:
        """The log has not taken it; the shell answers its replies."""

    def committed(self, high_watermark: Offset) -> None:
        """What is below cannot be lost any more."""

    def written(self, write: Write, *, now_ms: int) -> None:
        """The high watermark has passed it."""

    def next_deadline_ms(self) -> int | None:
        """When to call `tick`."""

    def tick(self, *, now_ms: int, wall_ms: int) -> None:
        """Time-outs that have run out."""

    def expire(self, *, now_ms: int, wall_ms: int) -> bool:
        """A step of removing what has expired; True when there is more to do now."""


Machine = TypeVar("Machine", bound=ShardMachine)


class ShardCall(Protocol):
    """A request method of a machine's class, such as `Shard.join_group`."""

    def __call__(
        self, machine: Any, caller: Caller, request: Any, /, *, now_ms: int, wall_ms: int
    ) -> None:
        """Let the machine decide."""
