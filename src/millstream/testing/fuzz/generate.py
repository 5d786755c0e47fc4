"""Requests made at random from their declarations: valid in form, strange in content."""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from millstream.runtime.randomness import SeededRandomness
from millstream.wire.api_keys import ApiKey
from millstream.wire.catalogue import request_type
from millstream.wire.fields import Field, Kind
from millstream.wire.headers import encode_request_header, is_flexible
from millstream.wire.schema import Struct

_BITS: Final = {Kind.INT8: 8, Kind.INT16: 16, Kind.INT32: 32, Kind.INT64: 64}
_UINT16_MAX: Final = 65_535
_UNKNOWN_TAG: Final = 1_000
"""Above every number that Kafka has given out."""
_DEPTH_MAX: Final = 6


class Form(NamedTuple):
    """One version of one request."""

    key: ApiKey
    version: int

    @property
    def is_flexible(self) -> bool:
        return is_flexible(self.key, self.version)


class Filler:
    """Fills a request of one form; all it draws comes from one seed."""

    def __init__(
        self, chance: SeededRandomness, form: Form, *, texts: Sequence[str] = ("", "a", "topic")
    ) -> None:
        self._chance = chance
        self._form = form
        self._texts = (*texts, "ü" * 70, "x" * 250, ".", "..", "a/b", "a\0b")

    def request(self) -> Any:
        return self._struct(request_type(self._form.key), 0)

    def frame(self) -> bytes:
        """A whole frame, its size first."""
        return self.frame_of(self.request().encode(self._form.version))

    def frame_of(self, request: bytes) -> bytes:
        header = encode_request_header(
            self._form.key,
            self._form.version,
            self._chance.integer(-(2**31), 2**31),
            self._chance.choice([None, "", "client", "ü" * 100]),
        )
        body = header + request
        return struct.pack(">i", len(body)) + body

    def _struct(self, struct: type[Struct], depth: int) -> Struct:
        given: dict[str, Any] = {}
        for field in struct.FIELDS:
            if self._form.version not in field.versions:
                continue
            if field.tag is None or self._chance.chance(0.5):
                given[field.name] = self._value(field, depth)
        if self._form.is_flexible and self._chance.chance(0.1):
            tags = range(_UNKNOWN_TAG, _UNKNOWN_TAG + self._chance.integer(1, 4))
            given["unknown_tags"] = {
                tag: self._chance.bytes(self._chance.integer(0, 5)) for tag in tags
            }
        return struct(**given)

    def _value(self, field: Field, depth: int) -> Any:
        if self._form.version in field.nullable and self._chance.chance(0.2):
            return None
        if field.kind is Kind.ARRAY:
            return [self._item(field, field.element, depth) for _ in range(self._count(depth))]
        return self._item(field, field.kind, depth)

    def _count(self, depth: int) -> int:
        if depth >= _DEPTH_MAX:
            return 0
        return self._chance.choice([0, 1, 1, 2, 3, 12 if depth < 2 else 2])

    def _item(self, field: Field, kind: Kind | None, depth: int) -> Any:
        if field.struct is not None:
            return self._struct(field.struct, depth + 1)
        return self._primitive(kind or Kind.STRING)

    def _primitive(self, kind: Kind) -> Any:
        chance = self._chance
        if kind in _BITS:
            half = 2 ** (_BITS[kind] - 1)
            return chance.choice([0, 1, -1, 2, half - 1, -half, chance.integer(-half, half)])
        if kind is Kind.UINT16:
            return chance.choice([0, 1, _UINT16_MAX])
        if kind is Kind.BOOLEAN:
            return chance.chance(0.5)
        if kind is Kind.FLOAT64:
            return chance.choice([0.0, -1.5, float("inf")])
        if kind is Kind.UUID:
            return chance.choice([UUID(int=0), UUID(int=1), UUID(bytes=chance.bytes(16))])
        if kind is Kind.STRING:
            return chance.choice(self._texts)
        return chance.bytes(chance.choice([0, 1, 5, 61, 70, 300]))
