r"""`subscribePattern` is a Java regular expression; this turns it into one of Python's.

Most patterns mean the same in both languages. Syntax that differs is rewritten; syntax that Python
would silently interpret differently (nested and intersected character classes) is refused, because
a pattern that selects the wrong topics is worse than an error. Topic names are ASCII, so classes
like `\p{Alnum}` need no Unicode tables.
"""

import re
from collections.abc import Iterator
from typing import Final

_CLASSES: Final = {
    "Lower": "a-z",
    "Upper": "A-Z",
    "Alpha": "a-zA-Z",
    "IsAlphabetic": "a-zA-Z",
    "Digit": "0-9",
    "IsDigit": "0-9",
    "Alnum": "a-zA-Z0-9",
    "Punct": r"!-/:-@\[-`{-~",
    "Graph": "!-~",
    "Print": " -~",
    "Blank": r" \t",
    "Space": r" \t-\r",
    "XDigit": "0-9a-fA-F",
    "ASCII": r"\x00-\x7f",
    "L": "a-zA-Z",
    "Lu": "A-Z",
    "Ll": "a-z",
    "N": "0-9",
    "Nd": "0-9",
}

# Longest first: an escape is matched as a whole before its characters.
_TOKEN = re.compile(
    r"""
      \\Q(?P<quoted>.*?)(?:\\E|\Z)
    | \\(?P<negated>[pP])(?:\{(?P<name>\w+)\}|(?P<letter>[A-Z]))
    | \\k<(?P<back>\w+)>
    | \(\?<(?P<group>[a-zA-Z]\w*)>
    | \\(?P<escape>.)
    | (?P<plain>.)
    """,
    re.VERBOSE | re.DOTALL,
)


class PatternUnsupported(ValueError):
    """A Java pattern without an equivalent in Python, or an invalid one."""


def compile_java_pattern(pattern: str) -> re.Pattern[str]:
    """The Python pattern that matches the same topic names."""
    try:
        return re.compile("".join(_translated(pattern)), re.ASCII)
    except re.error as error:
        raise PatternUnsupported(f"not a supported regular expression ({error})") from None


def _translated(pattern: str) -> Iterator[str]:
    class_start: int | None = None
    for token in _TOKEN.finditer(pattern):
        is_in_class = class_start is not None
        plain = token["plain"]
        if plain is None:
            yield _special(token, is_in_class=is_in_class)
            continue
        if is_in_class:
            _check_in_class(pattern, token.start())
            if plain == "]" and pattern[class_start : token.start()] not in ("[", "[^"):
                class_start = None
        elif plain == "[":
            class_start = token.start()
        yield plain


def _check_in_class(pattern: str, position: int) -> None:
    if pattern[position] == "[":
        raise PatternUnsupported("a character class inside another one is not supported")
    if pattern.startswith("&&", position):
        raise PatternUnsupported("an intersection of character classes ('&&') is not supported")


def _special(token: re.Match[str], *, is_in_class: bool) -> str:
    if token["quoted"] is not None:
        return re.escape(token["quoted"])
    if token["negated"] is not None:
        return _named_class(token, is_in_class=is_in_class)
    if token["back"] is not None:
        return f"(?P={token['back']})"
    if token["group"] is not None:
        return token[0] if is_in_class else f"(?P<{token['group']}>"
    # Java's \z is Python's \Z; Java's \Z differs from it only before a final line break.
    return r"\Z" if token["escape"] == "z" else token[0]


def _named_class(token: re.Match[str], *, is_in_class: bool) -> str:
    name = token["name"] or token["letter"]
    ranges = _CLASSES.get(name) or _CLASSES.get(name.removeprefix("Is"))
    if ranges is None:
        raise PatternUnsupported(f"the character class {token[0]} is not supported")
    is_negated = token["negated"] == "P"
    if is_in_class and is_negated:
        raise PatternUnsupported(f"{token[0]} inside a character class is not supported")
    if is_in_class:
        return ranges
    return f"[^{ranges}]" if is_negated else f"[{ranges}]"
