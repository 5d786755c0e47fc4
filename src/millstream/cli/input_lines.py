"""Splits input of any length into lines, and lines into keys and values.

Time is linear in the bytes however long a line is, and no more of a line is read than a record can
hold: input without line breaks must not fill the memory.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_ESCAPES: Final = {b"t": b"\t", b"n": b"\n", b"r": b"\r", b"\\": b"\\"}
_ESCAPE: Final = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.?)", re.DOTALL)


class LineError(Exception):
    """A line that cannot become a record; those before it are valid."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number} {why}")


class Lines(NamedTuple):
    """Consecutive lines without their line breaks."""

    first: int
    """The line number of the first, counted from 1."""
    texts: list[bytes]


def whole_lines(read: Callable[[], bytes], *, bytes_max: int) -> Iterator[Lines]:
    """All lines until `read` returns nothing; the last may lack its line break."""
    parts: list[bytes] = []
    number, part_bytes = 1, 0
    while chunk := read():
        end = chunk.rfind(b"\n")
        if end >= 0:
            texts = b"".join((*parts, chunk[:end])).split(b"\n")
            yield from _checked(Lines(number, texts), bytes_max)
            number += len(texts)
            parts, part_bytes = [], 0
        rest = chunk[end + 1 :]
        parts.append(rest)
        part_bytes += len(rest)
        if part_bytes > bytes_max:
            raise _too_long(number, bytes_max)
    if part_bytes:
        yield Lines(number, [b"".join(parts)])


def _checked(lines: Lines, bytes_max: int) -> Iterator[Lines]:
    """The lines before the first that is too long; raises LineError for that one."""
    first, texts = lines
    if max(map(len, texts)) <= bytes_max:
        yield lines
        return
    row = next(row for row, text in enumerate(texts) if len(text) > bytes_max)
    if row:
        yield Lines(first, texts[:row])
    raise _too_long(first + row, bytes_max)


def _too_long(number: int, bytes_max: int) -> LineError:
    return LineError(
        number, f"is too long: a record can have at most {bytes_max} bytes (max.request.size)"
    )


def separator_of(given: bytes) -> bytes:
    r"""Unescape `\t`, `\n`, `\r`, `\\` and `\xNN` in a separator; raises ValueError."""

    def meant(match: re.Match[bytes]) -> bytes:
        what = match[1]
        if len(what) > 1:
            return bytes.fromhex(what[1:].decode())
        if what not in _ESCAPES:
            raise ValueError(r"unknown escape; use \t, \r, \xNN, or \\ for a backslash")
        return _ESCAPES[what]

    separator = _ESCAPE.sub(meant, given)
    if not separator:
        raise ValueError("must not be empty")
    if b"\n" in separator:
        raise ValueError("must not contain a line break: records are lines")
    return separator


class Pairs(NamedTuple):
    """Keys and values of lines, up to the first that has no key."""

    keys: list[bytes]
    values: list[bytes]
    error: LineError | None


def split_keys(lines: Lines, separator: bytes) -> Pairs:
    """The key is what precedes the first separator."""
    keys: list[bytes] = []
    values: list[bytes] = []
    for row, text in enumerate(lines.texts):
        key, found, value = text.partition(separator)
        if not found:
            why = f"has no key separator {_shown(separator)}"
            return Pairs(keys, values, LineError(lines.first + row, why))
        keys.append(key)
        values.append(value)
    return Pairs(keys, values, None)


def _shown(separator: bytes) -> str:
    try:
        return repr(separator.decode())
    except UnicodeDecodeError:
        return repr(separator)[1:]
