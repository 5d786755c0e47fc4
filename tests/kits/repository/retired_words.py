"""Finds words that the glossary has retired: in names, in comments and messages, and on pages.

The list is `retired_words.toml`. A name is retired with every part of it that is one of the words:
`_told_of`, `Told` and `TOLD_MAX` alike.
"""

import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

LIST = Path(__file__).with_name("retired_words.toml")
NAME_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


class Retired(NamedTuple):
    """The list."""

    identifiers: dict[str, str]
    """A word in lower case, and what is said instead of it."""
    allowed: frozenset[str]
    """Names that have such a word and are somebody else's, or mean just that."""
    phrases: tuple[tuple[re.Pattern[str], str], ...]
    """What prose must not have, with what is said instead."""


class Finding(NamedTuple):
    path: str
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: say {self.instead}"


@cache
def retired() -> Retired:
    found = tomllib.loads(LIST.read_text())
    phrases = tuple(
        (re.compile(pattern.replace(" ", r"\s+"), re.IGNORECASE), instead)
        for pattern, instead in found["phrases"].items()
    )
    return Retired(found["identifiers"], frozenset(found["allowed"]["names"]), phrases)


def in_code(path: str, text: str) -> Iterator[Finding]:
    """In the names, comments and strings of a module; Cython's tokens are Python's."""
    words = retired()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            for word in _retired_parts(token.string, words):
                yield Finding(path, token.start[0], token.string, words.identifiers[word])
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            yield from _in_prose(path, token.string, first_line=token.start[0])


def in_page(path: str, text: str) -> Iterator[Finding]:
    """In the prose of a Markdown page."""
    return _in_prose(path, text, first_line=1)


def _retired_parts(name: str, words: Retired) -> Iterator[str]:
    if name in words.allowed:
        return
    for part in NAME_PART.findall(name):
        if part.lower() in words.identifiers:
            yield part.lower()


def _in_prose(path: str, text: str, *, first_line: int) -> Iterator[Finding]:
    for pattern, instead in retired().phrases:
        for match in pattern.finditer(text):
            line = first_line + text.count("\n", 0, match.start())
            yield Finding(path, line, match[0], instead)
