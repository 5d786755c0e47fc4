"""The common shapes of Fetch; see `fetch.pyi`.

Requests and answers are left to the broker, whose own code is plain Python already: a second
version here would be no faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from millstream.kernels._plain.slots import PartitionSlot

__all__ = [
    "UNKNOWN",
    "Cursor",
    "answer_frame",
    "cursors_to_read",
    "cursors_to_read_for_follower",
    "parse",
    "tail_frame",
]

UNKNOWN: Final = -1


class Cursor:
    """See the stub."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "log_start",
        "max_bytes",
        "name",
        "replica",
        "sent_high_watermark",
        "sent_log_start",
        "slot",
        "visible_end",
    )

    def __init__(self, requested: tuple[str | bytes, int, int, int, int, int, int]) -> None:
        self.key: tuple[str | bytes, int] = requested[:2]
        self.name: str | None = None
        self.replica: Any = None
        self.slot: PartitionSlot | None = None
        self.sent_high_watermark = self.sent_log_start = UNKNOWN
        self.update(requested)

    def update(self, requested: tuple[str | bytes, int, int, int, int, int, int]) -> None:
        _, _, self.current_leader_epoch, self.fetch_offset = requested[:4]
        self.last_fetched_epoch, self.log_start, self.max_bytes = requested[4:7]
        self.visible_end = UNKNOWN

    def __repr__(self) -> str:
        return f"Cursor({self.key}, {self.fetch_offset})"


AnyCursor = TypeVar("AnyCursor", bound=Cursor)


def cursors_to_read(cursors: Iterable[AnyCursor]) -> list[AnyCursor]:
    return [
        cursor
        for cursor in cursors
        if (slot := cursor.slot) is None
        or cursor.fetch_offset != cursor.visible_end
        or slot.high_watermark != cursor.sent_high_watermark
        or slot.log_start != cursor.sent_log_start
    ]


def cursors_to_read_for_follower(cursors: Iterable[AnyCursor]) -> list[AnyCursor]:
    return [
        cursor
        for cursor in cursors
        if (slot := cursor.slot) is None
        or cursor.fetch_offset != cursor.visible_end
        or slot.log_end != cursor.visible_end
        or slot.high_watermark != cursor.sent_high_watermark
        or slot.log_start != cursor.sent_log_start
    ]


def parse(body: memoryview, version: int) -> tuple[Any, ...] | None:
    del body, version
    return None


def answer_frame(
    version: int, correlation_id: int, error: int, session_id: int, found: Sequence[Any]
) -> tuple[list[Any], int] | None:
    del version, correlation_id, error, session_id, found
    return None


def tail_frame(
    version: int,
    correlation_id: int,
    session_id: int,
    cursor: Cursor,
    size_max: int,
    is_committed: bool,  # noqa: FBT001 - as in the compiled twin
    is_follower: bool,  # noqa: FBT001
) -> tuple[bytes, int] | None:
    del version, correlation_id, session_id, cursor, size_max, is_committed, is_follower
    return None
