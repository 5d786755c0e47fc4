"""The notation: one call per field with its type and the versions that have it.

    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[Topic] | None = array(Topic, nullable="1+")

Versions read "4+" (from 4 on), "2-7" or "3"; left out, the field is in all of them. A field that
an encoded version lacks must hold its default, unless it is `ignorable`. To the type checker such a
call has the type of the field's value, so a wrong annotation is an error.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload
from uuid import UUID

from millstream.wire.primitives import Bytes

if TYPE_CHECKING:
    from millstream.wire.schema import Struct

T = TypeVar("T")

ALL: Final = "0+"
NEVER: Final = range(0)
VERSION_MAX: Final = 0x7FFF
"""Versions are signed 16-bit numbers on the wire."""

NO_UUID: Final = UUID(int=0)


class Kind(StrEnum):
    """The protocol's types, by Kafka's names; `STRUCT` stands for all structs."""

    BOOLEAN = "bool"
    INT8 = "int8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"
    INT64 = "int64"
    FLOAT64 = "float64"
    UUID = "uuid"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"
    ARRAY = "array"
    STRUCT = "struct"


@lru_cache(maxsize=256)
def versions_from(text: str) -> range:
    """The range that "4+", "2-7" or "3" means."""
    low, dash, high = text.removesuffix("+").partition("-")
    if text.endswith("+"):
        return range(int(low), VERSION_MAX + 1)
    return range(int(low), int(high if dash else low) + 1)


class Field:
    """One field of a struct, as declared. Not a value: instances of the struct hold those."""

    __slots__ = (
        "declared_default",
        "element",
        "ignorable",
        "kind",
        "name",
        "nullable",
        "struct",
        "tag",
        "versions",
    )  # fmt: skip

    def __init__(self, kind: Kind, versions: str, declared_default: object) -> None:
        self.name = ""
        self.kind = kind
        self.versions: range = versions_from(versions)
        self.nullable: range = NEVER
        """Versions in which the value may be null; the field may be absent in some of them."""
        self.declared_default = declared_default
        """The value of `default`, unless that is a mutable object."""
        self.tag: int | None = None
        """Number of a tagged field, which is tagged in all its versions."""
        self.ignorable = False
        self.element: Kind | None = None
        """Type of an array's items."""
        self.struct: type[Struct] | None = None
        """Class of a struct, or of an array's items when these are structs."""

    @property
    def default(self) -> Any:
        """The value of a field that was not set: a new object for arrays and structs."""
        if self.declared_default is None:
            return None
        if self.kind is Kind.ARRAY:
            return []
        return self.struct() if self.kind is Kind.STRUCT and self.struct else self.declared_default

    def __repr__(self) -> str:
        return f"Field({self.name!r}, {self.kind.value}, {self.versions})"


# -- what the type checker sees: a call that returns the field's value --------------------------


class _NonNullable(Protocol[T]):
    def __call__(
        self, versions: str = ..., *, default: T = ..., tag: int = ..., ignorable: bool = ...
    ) -> T: ...


class _Nullable(Protocol[T]):
    @overload
    def __call__(
        self, versions: str = ..., *, default: T = ..., tag: int = ..., ignorable: bool = ...
    ) -> T: ...
    @overload
    def __call__(
        self,
        versions: str = ...,
        *,
        nullable: str,
        default: T | None = ...,
        tag: int = ...,
        ignorable: bool = ...,
    ) -> T | None: ...


_ZERO: Final = object()
"""Represents an empty array or a struct of defaults, which are created each time."""


def _declare(kind: Kind, zero: object, versions: str = ALL, **options: Any) -> Any:
    field = Field(kind, versions, options.get("default", zero))
    if nullable := options.get("nullable"):
        field.nullable = versions_from(nullable)
    field.tag = options.get("tag")
    field.ignorable = options.get("ignorable", False)
    return field


boolean: Final[_NonNullable[bool]] = partial(_declare, Kind.BOOLEAN, False)
int8: Final[_NonNullable[int]] = partial(_declare, Kind.INT8, 0)
int16: Final[_NonNullable[int]] = partial(_declare, Kind.INT16, 0)
uint16: Final[_NonNullable[int]] = partial(_declare, Kind.UINT16, 0)
int32: Final[_NonNullable[int]] = partial(_declare, Kind.INT32, 0)
int64: Final[_NonNullable[int]] = partial(_declare, Kind.INT64, 0)
float64: Final[_NonNullable[float]] = partial(_declare, Kind.FLOAT64, 0.0)
uuid: Final[_NonNullable[UUID]] = partial(_declare, Kind.UUID, NO_UUID)
string: Final[_Nullable[str]] = partial(_declare, Kind.STRING, "")
blob: Final[_Nullable[Bytes]] = partial(_declare, Kind.BYTES, b"")
record_batches: Final[_Nullable[Bytes]] = partial(_declare, Kind.RECORDS, None)
"""Record batches: on the wire like bytes. Kafka's default is null, not empty."""


@overload
def array(
    item: Callable[..., T], versions: str = ..., *, tag: int = ..., ignorable: bool = ...
) -> list[T]: ...
@overload
def array(
    item: Callable[..., T],
    versions: str = ...,
    *,
    nullable: str,
    default: None = ...,
    tag: int = ...,
    ignorable: bool = ...,
) -> list[T] | None: ...
def array(item: Any, versions: str = ALL, **options: Any) -> Any:
    """A list of structs, given their class, or of primitive values, given their call."""
    field = _declare(Kind.ARRAY, _ZERO, versions, **options)
    if isinstance(item, type):
        field.element, field.struct = Kind.STRUCT, item
    else:
        field.element = item().kind
    return field


@overload
def nested(
    item: Callable[..., T], versions: str = ..., *, tag: int = ..., ignorable: bool = ...
) -> T: ...
@overload
def nested(
    item: Callable[..., T],
    versions: str = ...,
    *,
    nullable: str,
    default: None = ...,
    tag: int = ...,
    ignorable: bool = ...,
) -> T | None: ...
def nested(item: Any, versions: str = ALL, **options: Any) -> Any:
    """One struct."""
    field = _declare(Kind.STRUCT, _ZERO, versions, **options)
    field.struct = item
    return field
