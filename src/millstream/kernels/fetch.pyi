"""The common shapes of Fetch: requests read, answers written, cursors. For both twins.

Other shapes (most tagged fields, thousands of partitions, aborted transactions, damage) take the
slow path, the broker's own Python: `parse`, `answer_frame` and `tail_frame` then return None, those
of the plain twin always. `Cursor` and `cursors_to_read` are complete in both.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from millstream.kernels.slots import PartitionSlot

__all__ = [
    "UNKNOWN",
    "Cursor",
    "answer_frame",
    "cursors_to_read",
    "cursors_to_read_for_follower",
    "parse",
    "tail_frame",
]

UNKNOWN: int

class Cursor:
    """Where a client reads in one partition, and what was last sent of it."""

    key: tuple[str | bytes, int]
    """Topic, by name or by the bytes of its id, and partition."""
    name: str | None
    """The topic, once its id was resolved: if created again, it has another id (KIP-516)."""
    replica: Any
    slot: PartitionSlot | None
    """The replica's; set together with it."""
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start: int
    """Of the follower that fetches: where its own log begins."""
    max_bytes: int
    sent_high_watermark: int
    sent_log_start: int
    visible_end: int
    """Where the client's view ended at the last check. While it reads from there, and high
    watermark and log start are as sent, there is nothing to send."""

    def __init__(self, requested: tuple[str | bytes, int, int, int, int, int, int]) -> None: ...
    def update(self, requested: tuple[str | bytes, int, int, int, int, int, int]) -> None:
        """Set the fields of the request's partition."""

AnyCursor = TypeVar("AnyCursor", bound=Cursor)

def cursors_to_read(cursors: Iterable[AnyCursor]) -> list[AnyCursor]:
    """The cursors that may have something to send, by comparing numbers only."""

def cursors_to_read_for_follower(cursors: Iterable[AnyCursor]) -> list[AnyCursor]:
    """The same for a follower, which sees everything up to the log's end."""

def parse(body: memoryview, version: int) -> tuple[Any, ...] | None:
    """The fields of the broker's `FetchParams`, or None for the slow path."""

def answer_frame(
    version: int, correlation_id: int, error: int, session_id: int, found: Sequence[Any]
) -> tuple[list[Any], int] | None:
    """The parts of a whole frame and its size without the first four bytes; None for the slow path.

    `found` are the broker's `Found`: (cursor, error, high watermark, last stable offset, log
    start, aborted, data, diverging, ...). Records are copied where `data` has them and are a part
    of their own otherwise.
    """

def tail_frame(
    version: int,
    correlation_id: int,
    session_id: int,
    cursor: Cursor,
    size_max: int,
    is_committed: bool,
    is_follower: bool,
) -> tuple[bytes, int] | None:
    """The whole frame of an answer with what was written last to the cursor's partition, and
    nothing else, and how many bytes of it are records; the cursor notes that it was sent.

    None, and nothing noted, where `PartitionSlot.tail` (`end_tail` for a follower, which also sees
    what is undecided) has no records of at most `size_max` bytes, where something is undecided, or
    where the file has no descriptor, cannot be read, or does not have batches there that follow
    each other. Call it only while the cursor's replica is usable.
    """
