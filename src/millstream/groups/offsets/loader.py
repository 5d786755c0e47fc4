"""Reads the log of an offsets partition: stores the offsets, and yields the other entries.

A million offsets are read after a failover while their groups wait. Nearly all records are offsets,
nearly all of these have the same layout, and the same few topics repeat: no object is made of them
except what is kept.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from typing_extensions import Buffer

from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import Packed, pack, pack_fixed
from millstream.groups.records.entries import (
    Decoded,
    UnreadableEntry,
    decode_entry,
    transaction_ends,
)
from millstream.groups.records.keys import (
    LEGACY_OFFSET_KIND,
    OFFSET_KIND,
    OffsetKey,
    decode_offset_key,
)
from millstream.groups.records.values import OffsetCommitValue, decode_as
from millstream.model.ids import NO_PRODUCER_ID, GroupId, Offset
from millstream.shards.record_blocks import Block, read_blocks
from millstream.wire.primitives import MalformedFrame

_KIND: Final = Struct(">h")
_OFFSET_KINDS: Final = tuple(_KIND.pack(kind) for kind in (OFFSET_KIND, LEGACY_OFFSET_KIND))

_PREFIXES_MAX: Final = 100_000
"""Cached pairs of group and topic while loading, at about two hundred bytes each."""


class LogReader:
    """For one load. Reads the log in order; the amount per call bounds how long the loop waits."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._prefixes: dict[bytes, tuple[GroupId, str]] = {}
        """The group and topic of keys, by all of their bytes but the partition."""
        self._next = 0
        self.skipped_count = 0
        """Records of unknown types."""

    def read(self, records: Buffer) -> Iterator[Decoded]:
        """The entries that are not offsets, in the order of the log. It must be exhausted.

        Raises MalformedRecords and UnreadableEntry, as `decode_batches`.
        """
        for block in read_blocks(records):
            yield from self._block(self._unread(block))

    def _block(self, block: Block) -> Iterator[Decoded]:
        if block.offsets:
            self._next = block.offsets[-1] + 1
        if not block.is_control:
            yield from self._records(block)
            return
        for offset, producer, is_commit in transaction_ends(block):
            self._offsets.end_transaction(producer.producer_id, Offset(offset), is_commit=is_commit)

    def _unread(self, block: Block) -> Block:
        """A read may start with a batch that was read before."""
        if not block.offsets or block.offsets[0] >= self._next:
            return block
        rows = slice(sum(offset < self._next for offset in block.offsets), None)
        offsets, keys, values = block.offsets[rows], block.keys[rows], block.values[rows]
        return block._replace(offsets=offsets, keys=keys, values=values)

    def _records(self, block: Block) -> Iterator[Decoded]:
        producer_id = NO_PRODUCER_ID if block.producer is None else block.producer.producer_id
        append = self._offsets.append_packed
        for offset, key, value in zip(block.offsets, block.keys, block.values, strict=True):
            if key is not None and key[:2] in _OFFSET_KINDS:
                try:
                    append(self._key(key), _packed(offset, value), offset, producer_id)
                except MalformedFrame as error:
                    raise UnreadableEntry(offset, error) from error
                continue
            entry = decode_entry(offset, key, value)
            if entry is None:
                self.skipped_count += 1
            else:
                yield Decoded(Offset(offset), entry, block.producer)

    def _key(self, raw: bytes) -> OffsetKey:
        """Its strings are shared by all keys of the topic."""
        known = self._prefixes.get(raw[:-4])
        if known is not None:
            return OffsetKey(*known, int.from_bytes(raw[-4:], "big", signed=True))
        key = decode_offset_key(raw)
        if len(self._prefixes) == _PREFIXES_MAX:
            self._prefixes.clear()
        self._prefixes[raw[:-4]] = (key.group_id, key.topic)
        return key


def _packed(offset: int, raw: bytes | None) -> Packed | None:
    """Other layouts are older versions, and values with metadata or unknown tags."""
    if raw is None:
        return None
    packed = pack_fixed(offset, raw)
    return pack(offset, decode_as(OffsetCommitValue, raw)) if packed is None else packed
