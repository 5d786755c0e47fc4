"""What `except` clauses do with the errors they catch."""

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

BARE: Final = "without_frames"
"""The function whose result may be kept."""

END: Final = "end_if_fatal"
"""The function that code which catches every error calls with it."""

KEEPING_METHODS: Final = frozenset(
    {"append", "add", "extend", "set_exception", "reply", "respond", "fromkeys", "put"}
)


class Caught(NamedTuple):
    """A line that breaks a rule."""

    line: int
    text: str


def kept_errors(source: str) -> list[Caught]:
    """Lines of `except` clauses that keep the error as it is, with all its frames."""
    return [
        Caught(node.lineno, ast.unparse(parent))
        for handler in _handlers(ast.parse(source))
        for node, parent, above in _uses(handler)
        if _is_kept(node, parent, above)
    ]


def swallowed_errors(source: str) -> list[Caught]:
    """Clauses that catch every error and neither raise it nor end a process without memory."""
    return [
        Caught(handler.lineno, ast.unparse(handler).splitlines()[0])
        for handler in _handlers(ast.parse(source))
        if _names(handler.type) & {"Exception", "BaseException"} and not _is_passed_on(handler)
    ]


def _handlers(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler))


def _names(node: ast.AST | None) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} if node else set()


def _is_passed_on(handler: ast.ExceptHandler) -> bool:
    for node in ast.walk(handler):
        if isinstance(node, ast.Raise):
            return True
        if isinstance(node, ast.Call) and _name_of(node.func) in (END, *PASSED_ON):
            return True
    return False


PASSED_ON: Final = ("throw", "code_of", "on_error", "abort_failed", "_fail", "_failed", "refuse")
"""They call it, or raise the error elsewhere."""


def _uses(handler: ast.ExceptHandler) -> Iterator[tuple[ast.Name, ast.AST, ast.AST | None]]:
    """Where the error is named, with the node around it and the one around that."""
    parents: dict[ast.AST, ast.AST] = {}
    for statement in handler.body:
        for node in ast.walk(statement):
            for child in ast.iter_child_nodes(node):
                parents[child] = node
    for node, parent in parents.items():
        is_read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if is_read and node.id == handler.name:  # type: ignore[attr-defined]
            yield node, parent, parents.get(parent)  # type: ignore[misc]


def _is_kept(node: ast.AST, parent: ast.AST, above: ast.AST | None) -> bool:
    if isinstance(parent, ast.Return | ast.List | ast.Tuple | ast.Set | ast.Dict | ast.Yield):
        return not isinstance(above, ast.Raise)
    if isinstance(parent, ast.Assign):
        return any(isinstance(one, ast.Attribute | ast.Subscript) for one in parent.targets)
    if isinstance(parent, ast.keyword) and isinstance(above, ast.Call):
        return _is_class(above.func)
    if not isinstance(parent, ast.Call) or node is parent.func:
        return False
    if isinstance(above, ast.Raise):
        return False
    is_method = isinstance(parent.func, ast.Attribute) and parent.func.attr in KEEPING_METHODS
    return is_method or _is_class(parent.func)


def _is_class(function: ast.expr) -> bool:
    return _name_of(function).lstrip("_")[:1].isupper()


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
