"""Entries, which are what the machines decide and keep, to and from record batches.

`encode` makes one batch for the log, `decode_batches` reads what any broker wrote: ours or Kafka's,
compressed or compacted, with the batches of transactions and the markers that end them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from typing_extensions import Buffer

from millstream.groups.records.keys import Key
from millstream.model.errors import OperatingError
from millstream.model.ids import Offset, ProducerEpoch, ProducerId
from millstream.wire.schema import Message


class Entry(NamedTuple):
    """A record of the offsets topic: the new state of what the key names, or None: it is gone."""

    key: Key
    value: Message | None


class Producer(NamedTuple):
    """Whose transaction an entry belongs to."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class TransactionEnd(NamedTuple):
    """The marker that ends a transaction; its offsets count now, or are dropped."""

    is_commit: bool


class Decoded(NamedTuple):
    """One record of the log: an entry, or the end of a transaction."""

    offset: Offset
    what: Entry | TransactionEnd
    producer: Producer | None
    """None outside of transactions; a TransactionEnd always has one."""


class UnreadableEntry(OperatingError):
    """A record of the offsets topic that we should know but cannot read.

    To go on without it could answer with offsets that were never committed last.
    """

    def __init__(self, offset: Offset, what: object) -> None:
        self.offset = offset
        super().__init__(f"record {offset} of the offsets topic: {what}")


class Skipped:
    """How many records were passed over because their kind is not known here."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def encode(
    entries: Sequence[Entry], *, now_ms: int, producer: Producer | None = None, codec: int = 0
) -> bytearray:
    """One record batch for `append_as_leader`; with a producer it is part of its transaction.

    `now_ms` is wall-clock time. ValueError without entries, or for a string that is too long.
    """
    raise NotImplementedError


def decode_batches(records: Buffer, *, skipped: Skipped | None = None) -> Iterator[Decoded]:
    """What whole batches hold, in the order of the log; a batch cut off at the end is left out.

    Raises MalformedRecords for damaged batches, UnreadableEntry for what is inside of them.
    """
    raise NotImplementedError
