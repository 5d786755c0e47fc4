"""The rules for paths of nodes, which are ZooKeeper's."""

from typing import Final

ROOT: Final = "/"


def problem_of(path: str) -> str | None:
    """Why this is not a valid path of a node; None if it is."""
    if not path.startswith("/"):
        return "does not start with /"
    if path == ROOT:
        return None
    if path.endswith("/"):
        return "ends with /"
    for name in path[1:].split("/"):
        if not name:
            return "has an empty name"
        if name in (".", ".."):
            return "is relative"
        is_printable_ascii = name.isascii() and name.isprintable()
        if not is_printable_ascii and any(map(_is_forbidden, name)):
            return "has a character that is not allowed"
    return None


def _is_forbidden(character: str) -> bool:
    code = ord(character)
    return (
        code <= 0x1F
        or 0x7F <= code <= 0x9F
        or 0xD800 <= code <= 0xF8FF
        or 0xFFF0 <= code <= 0xFFFF
        # Java sees such a character as two halves, both of which are in a forbidden range.
        or code > 0xFFFF
    )


def parent_of(path: str) -> str:
    """The parent's path; the root is its own parent."""
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    """The last name of the path."""
    return path.rpartition("/")[2]
