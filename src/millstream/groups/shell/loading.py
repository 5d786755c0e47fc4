"""Reading a partition of the offsets topic into its machine, in steps."""

from typing import TYPE_CHECKING, Final

from millstream.groups.records.entries import Decoded, Skipped, TransactionEnd, decode_batches
from millstream.groups.shell.held_shard import HeldShard, Phase
from millstream.kernels.batches import LAST_OFFSET, ROW_FIELDS, walk
from millstream.model.errors import CorruptRecords
from millstream.model.ids import Offset
from millstream.runtime.turns import Pace, Steps
from millstream.storage.log_reader import Isolation, ReadSlice
from millstream.storage.ports import PartitionLog

if TYPE_CHECKING:
    from millstream.groups.shard import Shard

RECORDS_PER_TURN: Final = 100
"""Applied between two turns of others: about a millisecond."""
_ANY_SIZE: Final = 2**31 - 1


def loading(held: HeldShard, *, size_max: int, skipped: Skipped) -> Steps[int]:
    """Apply everything up to the log's end as it is now; how many records that were.

    Ends early when the shard is dropped. Raises OperatingError.
    """
    log = held.log
    end, offset, count = log.log_end, log.log_start, 0
    pace = Pace(RECORDS_PER_TURN)
    while offset < end:
        records = yield from _reading(log, offset, size_max)
        if held.phase is Phase.DROPPED:
            return count
        following = _end_of(records, offset)
        for decoded in decode_batches(records, skipped=skipped):
            if decoded.offset < offset:
                continue  # of the batch that holds the first
            _apply(held.shard, decoded)
            count += 1
            if pace.is_due():
                yield None
                if held.phase is Phase.DROPPED:
                    return count
        offset = following
    held.load_end = end
    return count


def _apply(shard: "Shard", decoded: Decoded) -> None:
    what, producer = decoded.what, decoded.producer
    if not isinstance(what, TransactionEnd):
        shard.apply(what, decoded.offset, producer)
    elif producer is not None:
        shard.transaction_ended(producer.producer_id, decoded.offset, is_commit=what.is_commit)


def _reading(log: PartitionLog, offset: Offset, size_max: int) -> Steps[bytes]:
    data: ReadSlice = log.read(offset, size_max=size_max, isolation=Isolation.LOG_END).data
    if data.file is None:
        return data.read()
    file = data.file
    file.pin()
    try:
        records: bytes = yield data.read
    finally:
        file.unpin()
    return records


def _end_of(records: bytes, offset: Offset) -> Offset:
    """The offset after the last whole batch."""
    rows, _, _ = walk(records, 0, len(records), check_crc=True, size_max=_ANY_SIZE)
    if not rows:
        raise CorruptRecords(f"no batch can be read at offset {offset}")
    return Offset(rows[LAST_OFFSET - ROW_FIELDS] + 1)
