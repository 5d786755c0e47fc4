"""Transactions in a pass over the log: whose records are committed, whose marker may be removed.

Records of an aborted transaction are never a key's newest value. A marker must outlive every batch
of its transaction: without it a replay would find the transaction open forever, and readers would
stop there (I-23, I-25).
"""

from array import array
from collections.abc import Iterable, Sequence

from millstream.kernels.batches import ATTRIBUTES, BASE_OFFSET, LAST_OFFSET, PRODUCER_ID
from millstream.model.errors import CorruptRecords
from millstream.model.ids import Offset, ProducerId
from millstream.runtime.disk import Disk
from millstream.storage.producers.machine import Marker
from millstream.storage.segments.batch_attributes import TRANSACTIONAL_BIT
from millstream.storage.segments.txn_index import AbortedTransaction, TransactionIndex


def collect_aborted(
    disk: Disk, paths: Iterable[str], start: Offset, end: Offset
) -> list[AbortedTransaction]:
    """Aborted transactions with records in [start, end), by first offset.

    `paths` are the transaction indexes of all segments from the one that holds `start` on: a
    marker may lie far behind the records it decides. Raises IndexDamaged.
    """
    found: list[AbortedTransaction] = []
    for path in paths:
        search = TransactionIndex(disk, path).collect(start, end)
        found += search.transactions
        if search.is_complete:
            break
    return sorted(found, key=lambda aborted: aborted.first_offset)


class _Aborted:
    """An aborted transaction that the pass has reached."""

    __slots__ = ("is_seen", "transaction")

    def __init__(self, transaction: AbortedTransaction) -> None:
        self.transaction = transaction
        self.is_seen = False
        """A batch of it is still in the log."""


class TransactionTracker:
    """Follows one pass; batches and markers come in offset order."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._waiting = iter(aborted)
        self._next = next(self._waiting, None)
        self._aborted: dict[ProducerId, _Aborted] = {}
        self._committed: set[ProducerId] = set()
        self._retained: list[AbortedTransaction] = []

    def on_batch(self, rows: "array[int]", row: int) -> bool:
        """Take note of a data batch; whether it belongs to an aborted transaction."""
        if not rows[row + ATTRIBUTES] & TRANSACTIONAL_BIT:
            return False
        self._begin_up_to(rows[row + LAST_OFFSET])
        producer_id = ProducerId(rows[row + PRODUCER_ID])
        aborted = self._aborted.get(producer_id)
        if aborted is not None and rows[row + BASE_OFFSET] <= aborted.transaction.last_offset:
            aborted.is_seen = True
            return True
        self._committed.add(producer_id)
        return False

    def on_marker(self, marker: Marker) -> bool:
        """Take note of a marker; whether no batch of its transaction is left."""
        self._begin_up_to(marker.offset)
        was_committed = marker.producer_id in self._committed
        self._committed.discard(marker.producer_id)
        if marker.is_commit:
            return not was_committed
        aborted = self._aborted.pop(marker.producer_id, None)
        if aborted is not None and aborted.is_seen:
            self._retained.append(aborted.transaction)
            return False
        if was_committed:
            # Continuing would take aborted records as newest and remove what they did not replace.
            raise CorruptRecords(
                f"the transaction index does not have the abort at offset {marker.offset}"
            )
        return True

    def take_retained(self) -> list[AbortedTransaction]:
        """Aborted transactions since the last call that must stay in the transaction index."""
        retained, self._retained = self._retained, []
        return retained

    def _begin_up_to(self, offset: int) -> None:
        while self._next is not None and self._next.first_offset <= offset:
            self._aborted[self._next.producer_id] = _Aborted(self._next)
            self._next = next(self._waiting, None)
