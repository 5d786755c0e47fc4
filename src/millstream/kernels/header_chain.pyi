"""Whether batches follow each other, by their headers only. For both twins.

A log's own bytes can be changed by others while they are in use: cut, zeroed, overwritten. The
headers show it without reading what is between them; what is wrong inside a batch shows in its CRC,
which every reader of records checks.
"""

from typing import Final

from typing_extensions import Buffer

__all__ = ["BROKEN", "COLD", "SHORT", "WHOLE", "check_bytes", "check_file"]

WHOLE: Final = 0
"""Every header was as it must be."""
COLD: Final = 1
"""What comes next is on the disk and not in the page cache; it is no hole."""
SHORT: Final = 2
"""The file ends there."""
BROKEN: Final = 3
"""No batch can begin there: another magic, a length beyond `end`, offsets that go back, a hole."""

def check_file(
    file: int, position: int, stop: int, end: int, offset: int, may_wait: bool
) -> tuple[int, int]:
    """Check the batches that begin in [position, stop) of a file: where it ended, and why.

    None may reach beyond `end`, and none may have an offset below `offset` or below those before
    it. With WHOLE it ended behind the last of them, at `stop` or beyond. Only with `may_wait` does
    it wait for the disk. Raises OSError.
    """

def check_bytes(buffer: Buffer, offset: int) -> bool:
    """Whether the buffer is whole batches, one after the other, none with an offset below `offset`
    or below those before it.
    """
