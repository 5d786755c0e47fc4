"""How every command fails: one line on stderr and an exit code."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

EXIT_PROBLEMS: Final = 1
"""The command worked and found something wrong with the data."""
EXIT_USAGE: Final = 2
"""Wrong options or arguments."""
EXIT_INTERRUPTED: Final = 130
"""Ended by Ctrl-C: what a shell shows of SIGINT."""
EXIT_UNREAD: Final = 141
"""The reader of our output has exited: what a shell shows of a process ended by SIGPIPE."""


class UnusablePathError(Exception):
    """A path on the command line that cannot be used; the text gives the reason."""


def complain(reason: str) -> None:
    """Write one line to stderr, if it is open."""
    if sys.stderr is not None:
        sys.stderr.write(f"millstream: {reason}\n")
        sys.stderr.flush()


def refuse(reason: str) -> NoReturn:
    """Write the reason to stderr and exit with EXIT_USAGE."""
    complain(reason)
    sys.exit(EXIT_USAGE)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Ctrl-C ends the process immediately: for a command that has nothing to finish.

    As an exception it may be raised while a lock is held that closing something waits for, or in
    a destructor, where it is lost; then the command would never end. A Python handler runs only
    when the main thread returns from a blocking call, and a signal that arrives just before the
    call does not interrupt it: so a thread reads the signals. Where SIGINT is ignored, as behind
    `nohup`, it stays ignored.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    previous_wakeup_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    threading.Thread(target=_exit_on_sigint, args=(read_fd,), name="Ctrl-C", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous_wakeup_fd)
        signal.signal(signal.SIGINT, before)
        os.close(write_fd)


def _exit_on_sigint(read_fd: int) -> None:
    """Read signal numbers, one byte each, until the other end is closed."""
    with os.fdopen(read_fd, "rb", buffering=0) as signals:
        while numbers := signals.read(64):
            if signal.SIGINT in numbers:
                os._exit(EXIT_INTERRUPTED)


@contextmanager
def unusable_paths(report: Callable[[str], None]) -> Iterator[None]:
    """Report an unreadable path, which the user can fix, in one line without a traceback."""
    try:
        yield
    except UnusablePathError as error:
        report(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        report(f"{error.filename or 'input'}: {error.strerror or error}")


@contextmanager
def ending_when_unread() -> Iterator[None]:
    """Exit silently when the reader of our output exits, as `| head` does."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        sys.exit(EXIT_UNREAD)


def _drop_output() -> None:
    """Redirect stdout to /dev/null: Python's final flush of the buffer would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_stdout() -> None:
    """Fail early when results could not be printed."""
    if sys.stdout is None:
        complain("standard output is closed; run the command with it open, or use > /dev/null")
        sys.exit(EXIT_PROBLEMS)


@contextmanager
def printing() -> Iterator[None]:
    """For code that only writes to stdout: an OSError becomes one line on stderr."""
    with ending_when_unread():
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            complain(f"standard output: {error.strerror or error}")
            _drop_output()
            sys.exit(EXIT_PROBLEMS)
