"""Which rows are visible: no control records, and with read_committed no aborted ones.

A response lists the aborted transactions that overlap it, each with its producer and its first
offset. A producer's batches are aborted from there until its abort marker, which is in the log like
any other record; so a response is walked from its first batch to its last.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from millstream.client.fetch.chunks import AbortedTransaction
from millstream.kernels.columns import (
    ATTRIBUTES,
    BATCH_FIELDS,
    LAST_OFFSET,
    PRODUCER_ID,
    ROW_START,
    ROW_STOP,
    Decoded,
)

_TRANSACTIONAL: Final = 16
_CONTROL: Final = 32
_ABORT: Final = b"\0\0"
"""The type in the key of a control record, behind its version."""

_SPECIAL: Final = _TRANSACTIONAL | _CONTROL

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Mask = npt.NDArray[np.bool_]


class Visibility:
    """Visibility of the rows of one response; call it for the decoded parts in their order."""

    __slots__ = ("_aborting", "_waiting")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._waiting = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
        self._aborting: set[int] = set()
        """Producers whose transaction at the current offset was aborted."""

    def kept(self, decoded: Decoded) -> "Mask | None":
        """True for each visible row; None: all of them."""
        # Local import: numpy may be missing where rows are read as Python values.
        import numpy as np

        batches = np.frombuffer(memoryview(decoded.batches), np.int64).reshape(-1, BATCH_FIELDS)
        special = (batches[:, ATTRIBUTES] & _SPECIAL).nonzero()[0]
        if not len(special):
            return None
        kept = np.ones(decoded.columns.rows, np.bool_)
        for batch in batches[special].tolist():
            if self._is_hidden(batch, decoded):
                kept[batch[ROW_START] : batch[ROW_STOP]] = False
        return None if kept.all() else kept

    def seen(self, decoded: Decoded) -> list[tuple[int, int]]:
        """The same as ranges [start, stop) of visible rows, without numpy."""
        batches, seen, start = decoded.batches, [], 0
        for at, attributes in enumerate(batches[ATTRIBUTES::BATCH_FIELDS]):
            if not attributes & _SPECIAL:
                continue
            batch = batches[at * BATCH_FIELDS : (at + 1) * BATCH_FIELDS].tolist()
            if self._is_hidden(batch, decoded):
                seen.append((start, batch[ROW_START]))
                start = batch[ROW_STOP]
        seen.append((start, decoded.columns.rows))
        return [one for one in seen if one[0] < one[1]]

    def _is_hidden(self, batch: list[int], decoded: Decoded) -> bool:
        producer_id, attributes = batch[PRODUCER_ID], batch[ATTRIBUTES]
        while self._waiting and self._waiting[-1].first_offset <= batch[LAST_OFFSET]:
            self._aborting.add(self._waiting.pop().producer_id)
        if attributes & _CONTROL:
            if _is_abort(batch, decoded):
                self._aborting.discard(producer_id)
            return True
        return producer_id in self._aborting


def _is_abort(batch: list[int], decoded: Decoded) -> bool:
    """Whether a control batch is an abort marker; one emptied by compaction is not."""
    keys, row = decoded.columns.keys, batch[ROW_START]
    if row == batch[ROW_STOP] or keys is None:
        return False
    at = memoryview(keys.offsets).cast("B").cast("i")[keys.first + row]
    return bytes(memoryview(keys.data)[at + 2 : at + 4]) == _ABORT
