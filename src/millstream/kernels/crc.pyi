"""CRC-32C (Castagnoli), which guards record batches and producer snapshots."""

from typing_extensions import Buffer

__all__ = ["crc32c", "shift_difference"]

def crc32c(data: Buffer, value: int = 0) -> int:
    """The checksum of the data; with `value`, that of what came before, of both together.

    Other threads run while a large buffer is summed up.
    """

def shift_difference(difference: int, size: int) -> int:
    """What two checksums differ by after `size` more bytes that are the same for both.

    With it the checksum of a long buffer follows a change near its beginning without the rest being
    summed up again: XOR it with the shifted XOR of the checksums of the old and the new bytes.
    """
