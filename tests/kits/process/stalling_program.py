"""The production broker with a fault inside: a signal makes its event loop stall.

Python runs signal handlers in the main thread between two steps of the program, and the broker's
event loop runs in that thread: whatever the handler does, the loop waits for it.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from millstream.broker import process

STALL_S: Final = 5
STARTED: Final = "the loop stalls"
OVER: Final = "the loop goes on"

BUSY: Final = signal.SIGUSR1
"""Pure Python for five seconds."""
GIL_HELD: Final = signal.SIGUSR2
"""One call of C for five seconds: no thread of the process runs meanwhile."""
DEADLOCK: Final = signal.SIGALRM
"""For good, without using the CPU."""
ENDLESS: Final = signal.SIGVTALRM
"""For good, using the CPU."""


def compute() -> None:
    end_s = time.monotonic() + STALL_S
    while time.monotonic() < end_s:
        sum(range(1000))


def hold_the_gil() -> None:
    ctypes.PyDLL(None).sleep(STALL_S)  # unlike CDLL, it keeps the interpreter's lock


def deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def compute_forever() -> None:
    while True:
        sum(range(1000))


STALLS: Final[dict[signal.Signals, Callable[[], None]]] = {
    BUSY: compute,
    GIL_HELD: hold_the_gil,
    DEADLOCK: deadlock,
    ENDLESS: compute_forever,
}


def stall(number: int, _frame: object) -> None:
    os.write(2, f"{STARTED}\n".encode())
    STALLS[signal.Signals(number)]()
    os.write(2, f"{OVER}\n".encode())


if __name__ == "__main__":
    for each in STALLS:
        signal.signal(each, stall)
    sys.exit(process.main(sys.argv[1:]))
