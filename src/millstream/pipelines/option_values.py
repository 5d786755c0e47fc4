"""Parses option texts: numbers, booleans, times and sizes in Spark's notation."""

import re
from collections.abc import Mapping
from typing import Final

from millstream.pipelines.errors import OptionsInvalid

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_TIME = re.compile(r"([0-9]{1,30})([a-z]+)?")
_TIME_UNITS_US: Final = {
    "us": 1,
    "ms": 1000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_SIZE = re.compile(r"([0-9]{1,30})([a-z]+)?")
_SIZE_PREFIXES: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


class OptionTexts:
    """Options by lower-case name. Every getter names the option as its documentation spells it."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._texts

    @property
    def names(self) -> list[str]:
        """Lower-case, sorted."""
        return sorted(self._texts)

    def text(self, name: str) -> str | None:
        return self._texts.get(name.lower())

    def required(self, name: str, reason: str) -> str:
        text = (self.text(name) or "").strip()
        if not text:
            raise OptionsInvalid(name, self.text(name), reason)
        return text

    def truth(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise OptionsInvalid(name, text, "must be true or false")
        return text.lower() == "true"

    def whole(self, name: str, *, lowest: int, highest: int = LONG_MAX) -> int | None:
        """An integer, None when not set."""
        text = self.text(name)
        if text is None:
            return None
        # Python would also accept 1_000 and surrounding blanks; one connector must not accept
        # what the other one refuses.
        if not _WHOLE.fullmatch(text) or not lowest <= int(text) <= highest:
            raise OptionsInvalid(name, text, f"must be an integer between {lowest} and {highest}")
        return int(text)

    def duration_ms(self, name: str) -> int | None:
        """Like 15m, 90s, 100ms; a number without a unit is milliseconds."""
        text = self.text(name)
        if text is None:
            return None
        found = _TIME.fullmatch(text.strip().lower())
        unit_us = None if found is None else _TIME_UNITS_US.get(found[2] or "ms")
        if found is None or unit_us is None:
            units = ", ".join(_TIME_UNITS_US)
            raise OptionsInvalid(name, text, f"must be a time like 90s or 15m; units are {units}")
        return self._bounded(name, text, int(found[1]) * unit_us // 1000)

    def size_bytes(self, name: str) -> int | None:
        """Like 64m, 1g, 512kb, in powers of 1024; a number without a unit is bytes."""
        text = self.text(name)
        if text is None:
            return None
        found = _SIZE.fullmatch(text.strip().lower())
        power = None if found is None else _size_power(found[2] or "b")
        if found is None or power is None:
            raise OptionsInvalid(
                name, text, "must be a size like 64m or 1g; units are b, k, m, g, t, p"
            )
        return self._bounded(name, text, int(found[1]) * 1024**power)

    def group(self, prefix: str) -> dict[str, str]:
        """All options below `prefix`, without it."""
        return {
            name.removeprefix(prefix): self._texts[name]
            for name in self.names
            if name.startswith(prefix)
        }

    @staticmethod
    def _bounded(name: str, text: str, value: int) -> int:
        if value > LONG_MAX:
            raise OptionsInvalid(name, text, f"is too large; at most {LONG_MAX}")
        return value


def _size_power(unit: str) -> int | None:
    """k, ki, kb and kib are all 1024."""
    return _SIZE_PREFIXES.get(re.sub(r"i?b$|(?<=.)i$", "", unit))
