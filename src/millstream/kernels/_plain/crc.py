"""CRC-32C of any buffer, by the `crc32c` package; described by `crc.pyi`."""

from typing import TYPE_CHECKING

from crc32c import crc32c as _crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["crc32c"]


def crc32c(data: "Buffer", value: int = 0) -> int:
    return _crc32c(data, value)
