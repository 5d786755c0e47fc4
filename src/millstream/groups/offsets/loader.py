"""Reads the log of an offsets partition: offsets go to their place, the rest is handed out.

A million offsets are read after a failover while their groups wait. Nearly all records are offsets,
nearly all of these have the same form, and the same few topics come again and again: no object is
made of them beside what is kept.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final

from typing_extensions import Buffer

from millstream.groups.offsets.machine import Offsets
from millstream.groups.offsets.packed import Packed, pack, pack_plain
from millstream.groups.records.entries import (
    Decoded,
    UnreadableEntry,
    decode_entry,
    ends_in,
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
"""Topics of groups that are remembered while loading, at about two hundred bytes each."""


class LogReader:
    """Of one load. Give it the log in order, as much at a time as the loop may be kept waiting."""

    def __init__(self, offsets: Offsets) -> None:
        self._offsets = offsets
        self._prefixes: dict[bytes, tuple[GroupId, str]] = {}
        """The group and topic of keys, by all of their bytes but the partition."""
        self._next = 0
        self.skipped_count = 0
        """Records of kinds that are not known here."""

    def read(self, records: Buffer) -> Iterator[Decoded]:
        """The entries that are no offsets, in the order of the log. It must be used up.

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
        for offset, producer, is_commit in ends_in(block):
            self._offsets.ended(producer.producer_id, Offset(offset), is_commit=is_commit)

    def _unread(self, block: Block) -> Block:
        """A read may begin with a batch that was read before."""
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
    """Other forms are older versions, and values with text or with tags that are new to us."""
    if raw is None:
        return None
    packed = pack_plain(offset, raw)
    return pack(offset, decode_as(OffsetCommitValue, raw)) if packed is None else packed
