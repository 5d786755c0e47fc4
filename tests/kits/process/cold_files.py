"""Files that are not in the page cache, for what must not wait for the disk."""

import os
import time

import pytest

TRY_FOR_S = 5.0
"""The kernel keeps pages that are in use, or on another core's list; later they can be dropped."""

POLL_S = 0.002


def make_cold(descriptor: int, *, position: int = 0) -> None:
    """Out of the page cache, and no more of it comes back than is read.

    On a file system that does not drop pages on request the test is skipped; with CI=true it fails:
    there such tests have to run.
    """
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    deadline_s = time.monotonic() + TRY_FOR_S
    while time.monotonic() < deadline_s:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            os.preadv(descriptor, [bytearray(1)], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return
        except OSError:
            break  # it does not know the flag
        time.sleep(POLL_S)
    reason = "this file system does not drop pages on request"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)
