"""Entries, the units that the machines decide and keep, to and from record batches.

`encode` makes one batch for the log, `decode_batches` reads what any broker wrote: ours or Kafka's,
compressed or compacted, with transactional batches and transaction markers.
"""

from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple

from typing_extensions import Buffer

from millstream.groups.records.keys import Key, decode_key, encode_key
from millstream.groups.records.values import decode_value, encode_value
from millstream.kernels.columns import BATCH_DEFAULTS, BatchOptions
from millstream.model.errors import OperatingError
from millstream.model.ids import Offset
from millstream.shards.effects import Producer
from millstream.shards.record_blocks import Block, build_batch, read_blocks
from millstream.wire.primitives import MalformedFrame
from millstream.wire.schema import Message

__all__ = [
    "Decoded",
    "Entry",
    "Producer",
    "Skipped",
    "TransactionEnd",
    "UnreadableEntry",
    "decode_batches",
    "decode_entry",
    "encode",
    "transaction_ends",
]

_MARKER_KEY: Final = Struct(">hh")  # version, type
_ABORT: Final = 0
_COMMIT: Final = 1


class Entry(NamedTuple):
    """A record of the offsets topic: the new value of the key, or None: a tombstone."""

    key: Key
    value: Message | None


class TransactionEnd(NamedTuple):
    """A transaction marker: its offsets are committed now, or dropped."""

    is_commit: bool


class Decoded(NamedTuple):
    """One record of the log: an entry, or the end of a transaction."""

    offset: Offset
    what: Entry | TransactionEnd
    producer: Producer | None
    """None outside of transactions; a TransactionEnd always has one."""


class UnreadableEntry(OperatingError):
    """A record of the offsets topic of a known type that cannot be read.

    Without it a response could have an offset that was not the last one committed.
    """

    def __init__(self, offset: int, what: object) -> None:
        self.offset = Offset(offset)
        super().__init__(f"record {offset} of the offsets topic: {what}")


class Skipped:
    """How many records were skipped because their type is unknown."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def encode(
    entries: Sequence[Entry], *, now_ms: int, producer: Producer | None = None, codec: int = 0
) -> bytearray:
    """One record batch for the log; with a producer it is part of its transaction.

    `now_ms` is wall-clock time: compaction keeps tombstones for a while after it. ValueError
    without entries, or for a string that is too long.
    """
    if not entries:
        raise ValueError("a batch needs at least one entry")
    pairs = [
        (encode_key(key), None if value is None else encode_value(value)) for key, value in entries
    ]
    if producer is None:
        options = BatchOptions(codec=codec) if codec else BATCH_DEFAULTS
    else:
        options = BatchOptions(
            codec=codec,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            is_transactional=True,
        )
    return build_batch(pairs, now_ms, options)


def decode_batches(records: Buffer, *, skipped: Skipped | None = None) -> Iterator[Decoded]:
    """The records of whole batches, in the order of the log; a truncated last batch is ignored.

    Byte strings in the values are views of the value only: they do not keep `records`. Raises
    MalformedRecords for corrupt batches, UnreadableEntry for their records.
    """
    for block in read_blocks(records):
        if block.is_control:
            for offset, producer, is_commit in transaction_ends(block):
                yield Decoded(Offset(offset), TransactionEnd(is_commit), producer)
            continue
        for at, key, value in zip(block.offsets, block.keys, block.values, strict=True):
            entry = decode_entry(at, key, value)
            if entry is not None:
                yield Decoded(Offset(at), entry, block.producer)
            elif skipped is not None:
                skipped.count += 1


def decode_entry(offset: int, key: bytes | None, value: bytes | None) -> Entry | None:
    """The entry of one record, or None if its type is unknown."""
    if key is None:
        raise UnreadableEntry(offset, "it has no key")
    try:
        decoded = decode_key(key)
        if decoded is None:
            return None
        return Entry(decoded, None if value is None else decode_value(decoded, value))
    except MalformedFrame as error:
        raise UnreadableEntry(offset, error) from error


def transaction_ends(block: Block) -> Iterator[tuple[int, Producer, bool]]:
    """Offset, producer and whether it commits, of the transaction markers in a control batch.

    Other control records are ignored.
    """
    for offset, key in zip(block.offsets, block.keys, strict=True):
        if key is None or len(key) < _MARKER_KEY.size:
            raise UnreadableEntry(offset, "a control record without a type")
        _, kind = _MARKER_KEY.unpack_from(key)
        if kind not in (_ABORT, _COMMIT):
            continue
        if block.producer is None:
            raise UnreadableEntry(offset, "a transaction marker without a producer")
        yield offset, block.producer, kind == _COMMIT
