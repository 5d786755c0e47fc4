"""Damage for frames: bytes changed, cut out, doubled; lengths and counts that lie."""

import struct
from typing import Final

from millstream.runtime.randomness import SeededRandomness

_NASTY: Final = (
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x0f\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x10",
    b"\xff\xff",
    b"\x7f\xff",
    b"\x80",
    b"\x00",
    b"\x01",
    b"\xff",
)
"""Counts and lengths at the edges, as plain numbers and as compact ones."""
_SIZE_BYTES: Final = 4
_CHUNK_MAX: Final = 16


def mutate(frame: bytes, chance: SeededRandomness) -> bytes:
    """One to four changes behind the size, which is then right again unless that is changed too."""
    body = mutate_bytes(frame[_SIZE_BYTES:], chance)
    size = len(body)
    if chance.chance(0.03):
        size = chance.choice([0, -1, 1, 2**31 - 1, size + 1, max(0, size - 1)])
    return struct.pack(">i", size) + body


def mutate_bytes(data: bytes, chance: SeededRandomness) -> bytes:
    """The same for bytes without a size in front."""
    body = bytearray(data)
    for _ in range(chance.integer(1, 5)):
        _change(body, chance)
    return bytes(body)


def _change(body: bytearray, chance: SeededRandomness) -> None:
    end = len(body) if chance.chance(0.5) else min(len(body), 64)
    at = chance.integer(0, end + 1)
    kind = chance.integer(0, 6)
    if kind == 0 and body:
        body[min(at, len(body) - 1)] ^= 1 << chance.integer(0, 8)
    elif kind == 1:
        nasty = chance.choice(_NASTY)
        body[at : at + len(nasty)] = nasty
    elif kind == 2:
        body[at:at] = chance.choice(_NASTY)
    elif kind == 3:
        del body[at : at + chance.integer(1, _CHUNK_MAX)]
    elif kind == 4:
        body[at:at] = body[at : at + chance.integer(1, _CHUNK_MAX)]
    else:
        size = chance.integer(1, _CHUNK_MAX)
        body[at : at + size] = chance.bytes(size)
