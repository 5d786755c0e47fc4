"""From a file's pages to a socket without a copy in between, and without waiting for the disk.

`sendfile` reads what is not in the page cache and waits for it, whatever the flags of the
descriptors, and that would stop every other connection. So the pages are looked up first
(`mincore`, which also reports a page that is still being read), and no more is
sent than was found. A page can be evicted between the two calls; those are microseconds, and
the cost is then one read.
"""

from typing import Final

__all__ = ["COLD", "FULL", "SENT", "SHORT", "UNKNOWN", "send_file"]

SENT: Final = 0
"""All of it was sent."""
FULL: Final = 1
"""The socket takes no more for now."""
COLD: Final = 2
"""What comes next has to be read from the disk."""
SHORT: Final = 3
"""The file ends before the range does."""
UNKNOWN: Final = 4
"""What is in the page cache is unknown, or `sendfile` does not support this file."""

def send_file(sock: int, file: int, position: int, size: int) -> tuple[int, int]:
    """Send a range of a file to a non-blocking socket: the bytes sent, and why it stopped.

    Raises OSError for any other error of the socket or the file.
    """
