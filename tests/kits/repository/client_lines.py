"""Log lines that are not limited per address and kind, as they are found in source."""

import ast
from typing import Final, NamedTuple

LOGGERS: Final = frozenset({"log", "_log", "logger"})
LEVELS: Final = frozenset(
    {"debug", "info", "warning", "error", "write", "critical", "exception", "log"}
)


class PlainLine(NamedTuple):
    """A use of a logger without a limit."""

    line: int
    message: str
    """As written in the source; "" where it is not a constant."""


def plain_lines(source: str) -> list[PlainLine]:
    """Every use of a method of a module's logger. `ClientLog` is given the logger itself."""
    tree = ast.parse(source)
    messages = {
        id(node.func): _constant(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args
    }
    return [
        PlainLine(node.lineno, messages.get(id(node), ""))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in LEVELS
        and isinstance(node.value, ast.Name)
        and node.value.id in LOGGERS
    ]


def _constant(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
