"""The known name that is most similar to a mistyped one."""

from collections.abc import Iterable
from typing import Final

_LIKENESS_MIN: Final = 0.75
"""Two wrong letters of eight are accepted; other words are not."""
_LETTERS_MAX: Final = 100
"""Comparing longer names takes long, and no setting has one."""


def hint(name: str, names: Iterable[str]) -> str:
    """The end of a message, such as "; did you mean retention.ms?"; empty without one."""
    found = nearest(name, names)
    return f"; did you mean {found}?" if found is not None else ""


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The most similar name, if any is similar; case and underscores are ignored."""
    if len(name) > _LETTERS_MAX:
        return None
    import difflib  # only for a mistyped name: a broker starts without it

    wanted = name.casefold().replace("_", ".")
    found = difflib.get_close_matches(wanted, names, n=1, cutoff=_LIKENESS_MIN)
    return found[0] if found else None
