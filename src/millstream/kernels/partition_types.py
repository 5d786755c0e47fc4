"""What goes into the partitioner beside binary columns; both twins share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from typing_extensions import Buffer

RECORD_COST: Final = 12
"""What a row counts in `stick` beside its key and value: a record's own fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Int32Column:
    """Arrow `int32`: values, and a bitmap or None when nothing is null.

    `first` is Arrow's own array offset, so that a slice is taken as it stands.
    """

    values: Buffer
    validity: Buffer | None = None
    first: int = 0
