"""How every command ends when it cannot do what it was asked: one line and an exit code."""

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
"""The command could not work with what it was given."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C before the command could do something about it: what a shell shows of SIGINT."""
EXIT_UNREAD: Final = 141
"""Nobody reads our output any more: what a shell shows of a process that SIGPIPE ended."""


class UnusablePathError(Exception):
    """A path on the command line that a command cannot work with; the text is the whole reason."""


def complain(reason: str) -> None:
    """One line on stderr, if there is one."""
    if sys.stderr is not None:
        sys.stderr.write(f"millstream: {reason}\n")
        sys.stderr.flush()


def refuse(reason: str) -> NoReturn:
    """Say on stderr why nothing can be done, and exit."""
    complain(reason)
    sys.exit(EXIT_USAGE)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """Ctrl-C ends the process on the spot: for a command that has nothing to finish.

    As an exception it may come with a lock taken that whoever closes something waits for, or in a
    destructor, where it is lost; then the command would go on for ever. A handler in Python runs
    only when the main thread comes back from what it waits for, and a signal that arrives just
    before a wait does not end it: so a thread listens. Where it is ignored, as behind `nohup`, it
    stays so.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    heard, said = os.pipe()
    os.set_blocking(said, False)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    said_before = signal.set_wakeup_fd(said, warn_on_full_buffer=False)
    threading.Thread(target=_end_when_told, args=(heard,), name="Ctrl-C", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(said_before)
        signal.signal(signal.SIGINT, before)
        os.close(said)


def _end_when_told(heard: int) -> None:
    """Until the other end is closed; a signal is a byte."""
    with os.fdopen(heard, "rb", buffering=0) as signals:
        while told := signals.read(64):
            if signal.SIGINT in told:
                os._exit(EXIT_INTERRUPTED)


@contextmanager
def unusable_paths(tell: Callable[[str], None]) -> Iterator[None]:
    """What cannot be read is the user's to mend: it is told in one line, without a traceback."""
    try:
        yield
    except UnusablePathError as error:
        tell(str(error))
    except BrokenPipeError:
        raise
    except OSError as error:
        tell(f"{error.filename or 'input'}: {error.strerror or error}")


@contextmanager
def ending_when_unread() -> Iterator[None]:
    """The reader of our output may go away, as `| head` does: no failure, and nothing to say."""
    try:
        yield
    except BrokenPipeError:
        _drop_output()
        sys.exit(EXIT_UNREAD)


def _drop_output() -> None:
    """What is still buffered would fail again when Python flushes it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def require_stdout() -> None:
    """For who would do something and could not tell what."""
    if sys.stdout is None:
        complain("standard output is closed")
        sys.exit(EXIT_PROBLEMS)


@contextmanager
def printing() -> Iterator[None]:
    """For who only writes to stdout inside: what it does not take is one line on stderr."""
    with ending_when_unread():
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            complain(f"standard output: {error.strerror or error}")
            _drop_output()
            sys.exit(EXIT_PROBLEMS)
