"""Which test files name a broker's handler in their docstring."""

import ast
import re
from typing import Final

WORD: Final = re.compile(r"\w+")


def api_name(handler: str) -> str:
    """Kafka's name of the API of a handler's module: `join_group` is JoinGroup."""
    return "".join(part.capitalize() for part in handler.split("_"))


def head_names(text: str, *, handler: str) -> bool:
    """Whether the docstring of a test module names the API of `handler`, as a word."""
    name = api_name(handler)
    # Most files do not have it at all; parsing takes a hundred times longer.
    return name in text and name in WORD.findall(ast.get_docstring(ast.parse(text)) or "")
