"""What a setting is: its name, type, default and rule, and how its text is read and shown.

Texts follow Java's rules, because operators bring their files from Kafka: numbers may have a sign
and spaces around them, booleans any case, lists spaces around the commas.
"""

import math
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Final, NamedTuple

from millstream.model.config.errors import InvalidValue

Value = bool | int | float | str | list[str]


class ConfigType(IntEnum):
    """Types as DescribeConfigs numbers them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Mode(IntEnum):
    """Whether a broker's setting can be changed while it runs, and for whom."""

    READ_ONLY = 0
    PER_BROKER = 1
    CLUSTER_WIDE = 2
    """For one broker, or for all that have no value of their own."""


class Rule(NamedTuple):
    """What a value must be besides being of its type."""

    allowed: str
    """Completes "it must be ..."."""
    accepts: Callable[[Any], bool]


def at_least(lowest: float) -> Rule:
    return Rule(f"at least {lowest}", lambda value: value >= lowest)


def between(lowest: float, highest: float) -> Rule:
    return Rule(f"between {lowest} and {highest}", lambda value: lowest <= value <= highest)


def one_of(*names: str) -> Rule:
    return Rule(f"one of {', '.join(names)}", lambda value: value in names)


def each_of(*names: str) -> Rule:
    allowed = f"a comma-separated list of any of {', '.join(names)}"
    return Rule(allowed, lambda values: all(value in names for value in values))


class ConfigKey(NamedTuple):
    """One setting."""

    name: str
    type: ConfigType
    default: str | None
    """None: not set, which some keys can be."""
    documentation: str
    rule: Rule | None = None
    synonyms: tuple[str, ...] = ()
    """Of a topic's key: the broker's keys that give its default, the strongest first."""
    mode: Mode = Mode.READ_ONLY
    """Of a broker's key."""
    is_internal: bool = False
    """For tests: shown only where it is set."""
    is_dynamic_only: bool = False
    """Of a broker's key that Kafka's files do not have: shown only where it is set, without its
    default."""

    @property
    def is_sensitive(self) -> bool:
        """Whether its value must never leave the broker; that of an unknown key may be a secret."""
        return self.type in (ConfigType.PASSWORD, ConfigType.UNKNOWN)

    @property
    def is_always_shown(self) -> bool:
        """Whether it is described also where it is not set."""
        return not self.is_internal and not self.is_dynamic_only

    @property
    def allowed(self) -> str:
        """What its values may be, in words."""
        if self.rule is None:
            return _TYPE_TEXTS[self.type]
        if self.type in _RANGES or self.type is ConfigType.DOUBLE:
            return f"{_TYPE_TEXTS[self.type]}, {self.rule.allowed}"
        return self.rule.allowed

    def parse(self, text: str) -> Value:
        """The value that the text means; raises InvalidValue."""
        value = _parse(self.type, text)
        if value is None or (self.rule is not None and not self.rule.accepts(value)):
            shown = "(hidden)" if self.is_sensitive else text
            raise InvalidValue(self.name, shown, allowed=self.allowed)
        return value


_RANGES: Final = {
    ConfigType.SHORT: range(-(2**15), 2**15),
    ConfigType.INT: range(-(2**31), 2**31),
    ConfigType.LONG: range(-(2**63), 2**63),
}
_TYPE_TEXTS: Final = {
    ConfigType.UNKNOWN: "a string",
    ConfigType.BOOLEAN: "true or false",
    ConfigType.STRING: "a string",
    ConfigType.INT: "an int32",
    ConfigType.SHORT: "an int16",
    ConfigType.LONG: "an int64",
    ConfigType.DOUBLE: "a number",
    ConfigType.LIST: "a comma-separated list of non-empty strings",
    ConfigType.CLASS: "a class name",
    ConfigType.PASSWORD: "a string",
}
_INTEGER: Final = re.compile(r"[+-]?\d{1,64}")
_DECIMAL: Final = re.compile(
    r"([+-]?(?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][+-]?\d{1,5})?)[fFdD]?"
)


def _parse(kind: ConfigType, text: str) -> Value | None:
    """None for a text that is not of the type."""
    text = text.strip()
    if kind in _RANGES:
        number = int(text) if _INTEGER.fullmatch(text) else None
        return number if number is not None and number in _RANGES[kind] else None
    if kind is ConfigType.BOOLEAN:
        return {"true": True, "false": False}.get(text.lower())
    if kind is ConfigType.DOUBLE:
        found = _DECIMAL.fullmatch(text)
        return _finite(float(found[1])) if found else None
    if kind is ConfigType.LIST:
        members = split_list(text)
        return None if "" in members else members
    return text


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def split_list(text: str) -> list[str]:
    """The members between the commas, each once; nothing but spaces is an empty list."""
    if not text.strip():
        return []
    return list(dict.fromkeys(member.strip() for member in text.split(",")))


def text_of(value: Value) -> str:
    """A value as Java writes it, which is how clients expect to see it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _java_double(value)
    if isinstance(value, list):
        return ",".join(value)
    return str(value)


def _java_double(value: float) -> str:
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    from decimal import Decimal  # loaded only where such a number is shown

    _, numbers, exponent = Decimal(repr(abs(value))).as_tuple()
    digits = "".join(map(str, numbers)).rstrip("0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{len(numbers) - 1 + int(exponent)}"
