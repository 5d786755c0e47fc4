"""Secrets that cannot be logged by accident."""

import hmac
import re
from typing import Final, NoReturn

HIDDEN: Final = "[hidden]"

_SENSITIVE_NAME: Final = re.compile(
    r"passw|secret|token|credential|jaas|private.?key|keystore.key", re.IGNORECASE
)


class Secret:
    """A password or key: every way to print it shows that there is one, never what it is.

    Only `reveal()` gives the value, so that a search for the word finds every use.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself, for the one place that needs it."""
        return self._value

    def __eq__(self, other: object) -> bool:
        # In constant time: the duration would reveal how much of a guess is right.
        if isinstance(other, Secret):
            return hmac.compare_digest(self._value.encode(), other._value.encode())
        return NotImplemented

    def __hash__(self) -> NoReturn:
        raise TypeError("a secret has no hash")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled")

    def __bool__(self) -> bool:
        return bool(self._value)

    def __repr__(self) -> str:
        return HIDDEN

    def __format__(self, specification: str) -> str:
        return HIDDEN


def is_sensitive(name: str) -> bool:
    """Whether a field of this name is hidden even when its value is ordinary text."""
    return _SENSITIVE_NAME.search(name) is not None
