"""`millstream up` and `millstream broker`: named already, not there yet, and they say so."""

from typing import NoReturn

from millstream import __version__
from millstream.cli.failure import refuse


def up() -> None:
    """Start a cluster on this machine (not part of this version yet)."""
    _not_yet()


def broker() -> None:
    """Start one broker (not part of this version yet)."""
    _not_yet()


def _not_yet() -> NoReturn:
    refuse(f"the broker is not part of version {__version__} yet; `make demo` shows what is")
