"""CRC-32C (Castagnoli), which guards record batches and producer snapshots."""

from typing_extensions import Buffer

__all__ = ["crc32c"]

def crc32c(data: Buffer, value: int = 0) -> int:
    """The checksum of the data; with `value`, that of what came before, of both together.

    Other threads run while a large buffer is summed up.
    """
