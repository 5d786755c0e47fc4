"""CRC-32C of any buffer, by the `crc32c` package; described by `crc.pyi`."""

from typing import TYPE_CHECKING, Final

from crc32c import crc32c as _crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["crc32c", "shift_difference"]

_POLYNOMIAL: Final = 0x82F63B78
_over_bytes: list[list[int]] = []
"""Operators "2**n zero bytes" as matrices of bits, made when they are needed."""


def crc32c(data: "Buffer", value: int = 0) -> int:
    return _crc32c(data, value)


def shift_difference(difference: int, size: int) -> int:
    if size < 0:
        raise ValueError("a size below zero")
    power = 0
    while size:
        if size & 1:
            difference = _times(_operator(power), difference)
        size >>= 1
        power += 1
    return difference


def _operator(power: int) -> list[int]:
    if not _over_bytes:
        one_bit = [_POLYNOMIAL, *(1 << bit for bit in range(31))]
        _over_bytes.append(_squared(_squared(_squared(one_bit))))
    while len(_over_bytes) <= power:
        _over_bytes.append(_squared(_over_bytes[-1]))
    return _over_bytes[power]


def _squared(matrix: list[int]) -> list[int]:
    return [_times(matrix, row) for row in matrix]


def _times(matrix: list[int], vector: int) -> int:
    total = 0
    for row in matrix:
        if vector & 1:
            total ^= row
        vector >>= 1
    return total
