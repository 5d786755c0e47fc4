"""How every command ends when it cannot do what it was asked: one line and an exit code."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import typer

EXIT_PROBLEMS: Final = 1
"""The command worked and found something wrong with the data."""
EXIT_USAGE: Final = 2
"""The command could not work with what it was given."""


def refuse(reason: str) -> NoReturn:
    """Say on stderr why nothing can be done, and exit."""
    typer.echo(f"millstream: {reason}", err=True)
    raise typer.Exit(EXIT_USAGE)


@contextmanager
def refusing_os_errors() -> Iterator[None]:
    """A file that cannot be read is the user's to mend: one line instead of a traceback."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output went away, as `| head` does
    except OSError as error:
        refuse(f"{error.filename or 'input'}: {error.strerror or error}")
