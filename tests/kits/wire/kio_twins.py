"""The same message twice: as ours, and as kio's dataclass of that version.

kio makes its classes from Kafka's definitions, one per version, and gives some fields other types
than the wire has: durations, times, error codes, ids that may be missing.
"""

import dataclasses
import datetime
import random
import typing
from collections.abc import Iterator
from types import NoneType
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode as KioErrorCode

from kits.wire.wire_messages import INTEGER_BITS, Case
from millstream.wire.fields import NO_UUID, Field, Kind
from millstream.wire.schema import Struct

TEXTS: Final = ("", "a", "näme", "🦀日本", "é" * 64, "x" * 300)
WIRE_KINDS: Final = {
    "error_code": Kind.INT16,
    "timedelta_i32": Kind.INT32,
    "timedelta_i64": Kind.INT64,
    "datetime_i64": Kind.INT64,
}
"""kio's own types, as they are on the wire; the others have Kafka's names."""
ZEROS: Final = {Kind.STRING: "", Kind.BYTES: b"", Kind.UUID: NO_UUID, Kind.BOOLEAN: False}
MAY_BE_MISSING: Final = ("uuid", "datetime_i64")
"""kio says None for an id of zeros and for the time -1, which are not null on the wire."""
EPOCH: Final = datetime.datetime.fromtimestamp(0, tz=datetime.UTC)
MILLISECOND: Final = datetime.timedelta(milliseconds=1)


class Pair(NamedTuple):
    """One field in both worlds."""

    ours: Field
    theirs: "dataclasses.Field[Any]"

    @property
    def kio_type(self) -> str:
        told: str = self.theirs.metadata.get("kafka_type", Kind.STRUCT.value)
        return told

    @property
    def kio_struct(self) -> Any:
        """Class of the value or the items, when these are structs."""
        return next(
            (one for one in _leaves(self.theirs.type) if dataclasses.is_dataclass(one)), None
        )

    @property
    def is_kio_array(self) -> bool:
        return any(typing.get_origin(one) is tuple for one in _members(self.theirs.type))

    @property
    def may_be_none(self) -> bool:
        return NoneType in _members(self.theirs.type)


def _members(hint: Any) -> tuple[Any, ...]:
    """Of a union, or the type itself."""
    return (hint,) if typing.get_origin(hint) is tuple else typing.get_args(hint) or (hint,)


def _leaves(hint: Any) -> Iterator[Any]:
    for one in typing.get_args(hint) or (hint,):
        yield from (one,) if one is hint else _leaves(one)


def pairs(ours: type[Struct], theirs: Any, version: int) -> list[Pair]:
    """By place: kio names durations without their unit. ValueError when one has more fields."""
    there = [field for field in ours.FIELDS if version in field.versions]
    return [Pair(*both) for both in zip(there, dataclasses.fields(theirs), strict=True)]


# -- declarations ------------------------------------------------------------------------------


def differences(ours: type[Struct], theirs: Any, version: int, where: str) -> Iterator[str]:
    """Fields, types, nulls, tags and defaults that are not the same."""
    our_names = [field.name for field in ours.FIELDS if version in field.versions]
    their_names = [field.name for field in dataclasses.fields(theirs)]
    if [_bare(name) for name in our_names] != [_bare(name) for name in their_names]:
        yield f"{where}: ours {our_names}, kio's {their_names}"
        return
    for pair in pairs(ours, theirs, version):
        place = f"{where}.{pair.ours.name}"
        for what, our_fact, their_fact in _facts(pair, version):
            if our_fact != their_fact:
                yield f"{place}: {what}: ours {our_fact!r}, kio's {their_fact!r}"
        if pair.ours.struct is not None and pair.kio_struct is not None:
            yield from differences(pair.ours.struct, pair.kio_struct, version, place)


def _bare(name: str) -> str:
    """Without the unit, and without what kio adds to names that Python has, as in `id_`."""
    return name.removesuffix("_ms").removesuffix("_")


def _facts(pair: Pair, version: int) -> Iterator[tuple[str, Any, Any]]:
    ours = pair.ours
    kio_kind = WIRE_KINDS.get(pair.kio_type) or Kind(pair.kio_type)
    yield "type", ours.element or ours.kind, kio_kind
    yield "array", ours.kind is Kind.ARRAY, pair.is_kio_array
    yield "tag", ours.tag, pair.theirs.metadata.get("tag")
    if pair.kio_type not in MAY_BE_MISSING or pair.is_kio_array:
        yield "nullable", version in ours.nullable, pair.may_be_none
    if not (
        ours.kind is Kind.RECORDS or (ours.declared_default is None and not _has_default(pair))
    ):
        yield "default", kio_value(pair, ours.default), _kio_default(pair)


def _has_default(pair: Pair) -> bool:
    return pair.theirs.default is not dataclasses.MISSING


def _kio_default(pair: Pair) -> Any:
    if _has_default(pair):
        return pair.theirs.default
    if pair.ours.kind is Kind.ARRAY:
        return ()
    if pair.kio_struct is not None:
        return kio_value(pair, pair.ours.default)
    return kio_value(pair, ZEROS.get(pair.ours.kind, 0))


# -- values ------------------------------------------------------------------------------------


def kio_value(pair: Pair, value: Any) -> Any:
    """Our value in kio's type."""
    if isinstance(value, list):
        return tuple(_kio_item(pair, one) for one in value)
    return None if value is None else _kio_item(pair, value)


def _kio_item(pair: Pair, value: Any) -> Any:
    if isinstance(value, Struct):
        return kio_twin(value, pair.kio_struct)
    if pair.kio_type == "error_code":
        return KioErrorCode(value)
    if pair.kio_type.startswith("timedelta"):
        return value * MILLISECOND
    if pair.kio_type == "datetime_i64":
        return None if value == -1 and pair.may_be_none else EPOCH + value * MILLISECOND
    return None if value == NO_UUID else value


def kio_twin(ours: Struct, theirs: Any) -> Any:
    """The object of kio with our values."""
    given = {
        pair.theirs.name: kio_value(pair, getattr(ours, pair.ours.name))
        for pair in pairs(type(ours), theirs, theirs.__version__)
    }
    return theirs(**given)


def message_for(ours: type[Struct], theirs: Any, case: Case, chosen: random.Random) -> Any:
    """Any message of ours that kio's types can express."""
    given: dict[str, Any] = {}
    for pair in pairs(ours, theirs, case.version):
        if pair.ours.tag is None or chosen.random() < 0.6:
            given[pair.ours.name] = _value(pair, case, chosen)
    return ours(**given)


def _value(pair: Pair, case: Case, chosen: random.Random) -> Any:
    if case.version in pair.ours.nullable and pair.ours.tag is None and chosen.random() < 0.3:
        return None
    if pair.ours.kind is Kind.ARRAY:
        return [_item(pair, case, chosen) for _ in range(chosen.choice((0, 1, 2)))]
    return _item(pair, case, chosen)


def _item(pair: Pair, case: Case, chosen: random.Random) -> Any:
    if pair.ours.struct is not None:
        return message_for(pair.ours.struct, pair.kio_struct, case, chosen)
    if pair.kio_type == "error_code":
        return int(chosen.choice(list(KioErrorCode)))
    if pair.kio_type == "datetime_i64":  # kio takes whole seconds
        missing = [-1] if pair.may_be_none else []
        return chosen.choice([0, 1_780_000_000_000, *missing])
    if pair.kio_type == "timedelta_i64":  # and no more than floats hold
        return chosen.randrange(-(2**40), 2**40)
    return _plain_value(pair.ours.element or pair.ours.kind, chosen)


def _plain_value(kind: Kind, chosen: random.Random) -> Any:
    if kind in INTEGER_BITS:
        half = 2 ** (INTEGER_BITS[kind] - 1)
        return chosen.choice((0, -1, -half, half - 1, chosen.randrange(-half, half)))
    if kind is Kind.UINT16:
        return chosen.choice((0, 65535, chosen.randrange(65536)))
    if kind is Kind.BOOLEAN:
        return chosen.random() < 0.5
    if kind is Kind.FLOAT64:
        return chosen.choice((0.0, -1.5, 1e300))
    if kind is Kind.UUID:
        return UUID(int=chosen.choice((0, chosen.getrandbits(128))))
    if kind is Kind.STRING:
        return chosen.choice(TEXTS)
    return chosen.randbytes(chosen.choice((0, 1, 130)))
