"""The one error that malformed record bytes raise, and the reasons it can carry."""

from enum import IntEnum
from typing import Final


class Reason(IntEnum):
    """Why a batch was refused. Kernels return these as numbers."""

    NONE = 0
    SHORT = 1
    """The buffer ends inside the batch: more bytes could complete it."""
    LENGTH = 2
    """The claimed length is below a header or above the limit."""
    MAGIC = 3
    CRC = 4
    OFFSETS = 5
    """Negative base offset, last offset delta out of range, or deltas not as they must be."""
    COUNT = 6
    """Record count negative, or not what the batch holds."""
    CODEC = 7
    """Unknown compression type."""
    RECORD = 8
    """A record's own bytes are wrong: varint, length, key, value or header out of bounds."""
    COMPRESSION = 9
    """The compressed bytes do not decompress."""
    TOO_LARGE = 10
    """Decompressed size above the limit."""

    @property
    def text(self) -> str:
        """For people: what is wrong with the batch."""
        return _TEXTS[self]


_TEXTS: Final = {
    Reason.NONE: "no batch",
    Reason.SHORT: "a batch that ends too soon",
    Reason.LENGTH: "a batch with an impossible length",
    Reason.MAGIC: "a batch of an unknown format",
    Reason.CRC: "a batch with a wrong CRC",
    Reason.OFFSETS: "a batch with impossible offsets",
    Reason.COUNT: "a batch with a wrong number of records",
    Reason.CODEC: "a batch with an unknown compression",
    Reason.RECORD: "a batch with a record that cannot be decoded",
    Reason.COMPRESSION: "a batch that cannot be decompressed",
    Reason.TOO_LARGE: "a batch that decompresses to more than is allowed",
}


class MalformedRecords(ValueError):
    """Bytes that are no valid record batch. The sender, or the disk, is at fault."""

    def __init__(self, reason: Reason, *, position: int = 0, detail: str = "") -> None:
        self.reason = reason
        self.position = position
        super().__init__(f"{reason.text} at byte {position}{': ' + detail if detail else ''}")


class FrameError(ValueError):
    """Bytes that are no request at all. The client is at fault and its connection is closed.

    One class with a reason that is ready for the log: nothing is ever answered to such bytes.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)
