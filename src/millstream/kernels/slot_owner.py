"""What a partition's slot needs of its log; both twins of `slots` call it."""

from typing import Protocol


class SlotOwner(Protocol):
    """The log, as far as its slot needs it."""

    def write_staged(self) -> None:
        """Write `staged_buffers`, then call `apply_staged`. On an error nothing is changed."""
