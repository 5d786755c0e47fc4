"""What a Fetch that is served in steps has found so far."""

from collections.abc import Sequence
from typing import Final

from millstream.broker.fetch.answer import wait_ms_of
from millstream.broker.fetch.cursors import Found
from millstream.broker.fetch.read import FetchReader
from millstream.broker.requests.answer_parts import release
from millstream.runtime.scheduler import ITEMS_PER_TURN, StepGenerator
from millstream.storage.log.reader import ReadSlice

FREED_PER_STEP: Final = 10 * ITEMS_PER_TURN
"""Objects; it takes a tenth of the time that making one takes."""


class Gathered:
    """Added to by each step, which pins the files of its records."""

    __slots__ = ("_reader", "found", "pinned", "size_bytes", "unknown_count", "wait_ms")

    def __init__(self, reader: FetchReader) -> None:
        self._reader = reader
        self.found: list[Found] = []
        self.pinned: list[ReadSlice] = []
        self.size_bytes = self.unknown_count = 0
        self.wait_ms = reader.round.params.max_wait_ms if reader.round.cursors else 0
        """How long the request would wait for more; 0: it is answered when all was read."""

    def add(self, found: Sequence[Found]) -> None:
        """What one step has read, pinned."""
        self.found += found
        self.pinned += [one.data for one in found if one.data.file is not None]
        self.size_bytes += sum(one.data.size_bytes for one in found)
        self.unknown_count += sum(one.is_unknown for one in found)
        if self.wait_ms > 0:
            reader = self._reader
            is_enough = self.size_bytes >= reader.min_bytes or self.unknown_count >= len(
                reader.round.cursors
            )
            # What ends the wait by itself does so wherever it is found.
            self.wait_ms = 0 if is_enough else wait_ms_of(reader, found)

    def drop_steps(self) -> StepGenerator[None]:
        """Let go of what was found, and of the files that are still pinned. Freeing a hundred
        thousand objects at once takes as long as a step may take several times.
        """
        while self.pinned:
            chunk = self.pinned[-ITEMS_PER_TURN:]
            del self.pinned[-ITEMS_PER_TURN:]
            release(chunk)
            yield None
        while self.found:
            del self.found[-FREED_PER_STEP:]
            yield None
