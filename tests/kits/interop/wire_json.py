"""Our messages in the JSON that Kafka's converters read and write, and seeded ways to fill them."""

import base64
import random
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from kits.wire.wire_messages import FULL_VALUES, INTEGER_BITS, UNKNOWN_TAG, Case
from millstream.wire.fields import Field, Kind
from millstream.wire.schema import Struct

TEXTS: Final = ("", "a", "orders.v1", "näme", "日本", "🦀 \x00\n", "é" * 64, "x" * 127, "x" * 300)
"""Texts of all UTF-8 lengths, and on both sides of the first boundary of a compact length."""
FLOATS: Final = (0.0, -0.0, 1.5, -1e300, 5e-324, 1e16)
TAG_MAX: Final = 2**31 - 1


def kafka_name(field: Field) -> str:
    first, *others = field.name.split("_")
    return first + "".join(word.title() for word in others)


# -- into JSON ---------------------------------------------------------------------------------


def kafka_json(struct: Struct, version: int, *, is_given: bool) -> dict[str, Any]:
    """What Kafka's converter reads (`is_given`) or what it would write about the same message.

    Given to Kafka, fields that the version lacks come along when they are set: to write or to
    refuse them is Kafka's decision.
    """
    fields: dict[str, Any] = {}
    for field in struct.FIELDS:
        value = getattr(struct, field.name)
        is_default = value == field.default
        if version not in field.versions:
            if is_given and not is_default:
                fields[kafka_name(field)] = _to_json_value(value, version, is_given=is_given)
        elif field.tag is None or not is_default:
            name = kafka_name(field)
            if field.kind is Kind.RECORDS and value is not None and not is_given:
                fields[f"{name}SizeInBytes"] = len(value)
            else:
                fields[name] = _to_json_value(value, version, is_given=is_given)
    return fields


def _to_json_value(value: Any, version: int, *, is_given: bool) -> Any:
    if value is None:
        return None
    if isinstance(value, list):
        return [_item(one, version, is_given=is_given) for one in value]
    return _item(value, version, is_given=is_given)


def _item(value: Any, version: int, *, is_given: bool) -> Any:
    if isinstance(value, Struct):
        return kafka_json(value, version, is_given=is_given)
    if isinstance(value, UUID):
        return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    if isinstance(value, bytes | memoryview):
        return base64.b64encode(value).decode()
    return value


# -- filling -----------------------------------------------------------------------------------


class Seeded:
    """Random values from a seed; extremes and defaults are frequent."""

    def __init__(self, seed: str, *, has_unknown_tags: bool) -> None:
        self._random = random.Random(seed)
        self._has_unknown_tags = has_unknown_tags

    def value(self, kind: Kind) -> Any:
        if kind is Kind.UINT16:
            return self._random.choice((0, 1, 65535, self._random.randrange(65536)))
        if kind in INTEGER_BITS:
            return self._integer(INTEGER_BITS[kind])
        if kind is Kind.BOOLEAN:
            return self._random.random() < 0.5
        if kind is Kind.FLOAT64:
            return self._random.choice(FLOATS)
        if kind is Kind.UUID:
            return UUID(int=self._random.choice((0, 1, self._random.getrandbits(128))))
        if kind is Kind.STRING:
            return self._random.choice(TEXTS)
        return self._random.randbytes(self._random.choice((0, 1, 5, 127, 128, 300)))

    def _integer(self, bits: int) -> int:
        half = 2 ** (bits - 1)
        any_number = self._random.randrange(-half, half)
        return self._random.choice((0, -1, 1, -half, half - 1, any_number))

    def is_null(self) -> bool:
        return self._random.random() < 0.3

    def is_set(self) -> bool:
        return self._random.random() < 0.6

    def count(self) -> int:
        return self._random.choice((0, 1, 1, 2, 3))

    def unknown_tags(self) -> dict[int, bytes]:
        if not self._has_unknown_tags:
            return {}
        tags = {self._random.randrange(UNKNOWN_TAG, TAG_MAX) for _ in range(self.count())}
        return {tag: self._random.randbytes(self._random.randrange(4)) for tag in tags}


# -- defaults ----------------------------------------------------------------------------------


def outline(struct: type[Struct], case: Case) -> dict[str, Any]:
    """One item for every array of structs that the version has."""
    fields: dict[str, Any] = {}
    for field in struct.FIELDS:
        if field.struct is not None and case.version in field.versions:
            inner = outline(field.struct, case)
            fields[kafka_name(field)] = [inner] if field.kind is Kind.ARRAY else inner
    return fields


def with_items(struct: type[Struct], case: Case) -> Any:
    """The message that `outline` describes: all else is default."""
    given: dict[str, Any] = {}
    for field in struct.FIELDS:
        if field.struct is not None and case.version in field.versions:
            inner = with_items(field.struct, case)
            given[field.name] = [inner] if field.kind is Kind.ARRAY else inner
    return struct(**given)


class Misfit(NamedTuple):
    """A message with exactly one field that its version cannot carry, or not as null."""

    path: str
    message: Any
    outline: dict[str, Any] | None
    """Where the field holds a struct: Kafka's JSON cannot give it to a version that lacks it."""


def misfits(case: Case) -> Iterator[Misfit]:
    """One message for every field that the version cannot carry."""
    for number in range(len(list(_field_slots(case)))):
        message, drawn = with_items(case.message, case), outline(case.message, case)
        path, field, holder, part = list(_field_slots(case, message, drawn))[number]
        is_struct = field.struct is not None and case.version not in field.versions
        setattr(holder, field.name, _too_much(field, case))
        if is_struct and field.struct is not None:
            inner = outline(field.struct, case)
            part[kafka_name(field)] = [inner] if field.kind is Kind.ARRAY else inner
        yield Misfit(f"{path}.{field.name}", message, drawn if is_struct else None)


class _FieldSlot(NamedTuple):
    path: str
    field: Field
    holder: Any
    part: dict[str, Any]
    """The holder's part of the outline."""


def _field_slots(
    case: Case, message: Any = None, drawn: dict[str, Any] | None = None
) -> Iterator[_FieldSlot]:
    whole = with_items(case.message, case) if message is None else message
    parts = outline(case.message, case) if drawn is None else drawn
    return _field_slots_in(whole, parts, case, case.message.__name__)


def _field_slots_in(
    holder: Any, part: dict[str, Any], case: Case, path: str
) -> Iterator[_FieldSlot]:
    for field in holder.FIELDS:
        if case.version not in field.versions or _must_be_there(field, case):
            yield _FieldSlot(path, field, holder, part)
    for field in holder.FIELDS:
        if field.struct is not None and case.version in field.versions:
            value, inner = getattr(holder, field.name), part[kafka_name(field)]
            if field.kind is Kind.ARRAY:
                value, inner = value[0], inner[0]
            yield from _field_slots_in(value, inner, case, f"{path}.{field.name}")


def _must_be_there(field: Field, case: Case) -> bool:
    """It may be null in other versions, not in this one."""
    return len(field.nullable) > 0 and case.version not in field.nullable


def _too_much(field: Field, case: Case) -> Any:
    if case.version in field.versions:
        return None
    if field.kind is Kind.BOOLEAN:
        return not field.default
    kind = field.element or field.kind
    value = with_items(field.struct, case) if field.struct else FULL_VALUES[kind]
    return [value] if field.kind is Kind.ARRAY else value
