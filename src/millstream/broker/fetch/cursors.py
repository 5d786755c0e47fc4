"""Where a client reads in each partition, and what reading there gave."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.broker.fetch.request import FetchPartition, TopicKey
from millstream.kernels import fetch as kernel
from millstream.replication.readable import ReadableReplica
from millstream.storage.log.reader import ReadSlice
from millstream.storage.segments.txn_index import AbortedTransaction

UNKNOWN: Final = -1

CursorKey = tuple[TopicKey, int]


if TYPE_CHECKING:

    class Cursor(kernel.Cursor):
        """The kernel's class, whose leader is a partition here."""

        leader: ReadableReplica | None

else:
    Cursor = kernel.Cursor


class Found(NamedTuple):
    """What reading at one cursor gave."""

    cursor: Cursor
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start: int
    aborted: Sequence[AbortedTransaction] | None
    """None: not requested."""
    data: ReadSlice
    diverging: tuple[int, int] | None = None
    """Epoch and end offset from which the client's log diverges from ours."""
    is_unknown: bool = False
    """The partition does not exist: no reason to answer before `max_wait_ms` is over."""
    preferred_replica: int = -1
    """The broker that is closer to the client, which reads there instead (KIP-392)."""


def add_cursors(cursors: dict[CursorKey, Cursor], partitions: Sequence[FetchPartition]) -> None:
    """In the order of the request; of a partition that is named twice the last one is used."""
    for partition in partitions:
        cursors[partition[:2]] = Cursor(partition)


def update_cursors(cursors: dict[CursorKey, Cursor], partitions: Sequence[FetchPartition]) -> None:
    """Add what is new to a session, and note what has changed of the others."""
    for partition in partitions:
        key = partition[:2]
        cursor = cursors.get(key)
        if cursor is None:
            cursors[key] = Cursor(partition)
        else:
            cursor.update(partition)


def count_unknown(found: Sequence[Found]) -> int:
    """The partitions that do not exist here."""
    return sum(one.is_unknown for one in found)


def note_all_sent(found: Sequence[Found]) -> None:
    for one in found:
        note_sent(one)


def note_sent(one: Found) -> None:
    # After an error they are unknown, so that the client gets them once it is over; so they are for
    # a client whose log diverges from ours: it truncates its log and uses nothing else.
    is_taken = one.diverging is None
    one.cursor.sent_high_watermark = one.high_watermark if is_taken else UNKNOWN
    one.cursor.sent_log_start = one.log_start
