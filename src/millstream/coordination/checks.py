"""Checks of requests before they are sent, the same for every service.

A server answers some invalid paths with NoNode, kazoo normalizes others, and a multi of more than a
megabyte closes the connection instead of failing.
"""

from collections.abc import Sequence

from millstream.coordination.errors import BadArguments, RequestTooLarge
from millstream.coordination.paths import problem_of
from millstream.coordination.port import (
    MULTI_BYTES_MAX,
    MULTI_OPERATIONS_MAX,
    Create,
    NodeKind,
    Operation,
    Set,
)


def check_path(path: str, kind: NodeKind = NodeKind.PERSISTENT) -> None:
    """Raise BadArguments for an invalid path; to a sequential one digits are added."""
    if problem_of(path + "0" if kind.is_sequential else path) is not None:
        raise BadArguments(path)


def check_multi(operations: Sequence[Operation]) -> None:
    """Raise BadArguments for a bad path, RequestTooLarge for a multi that must be split."""
    for operation in operations:
        kind = operation.kind if isinstance(operation, Create) else NodeKind.PERSISTENT
        check_path(operation.path, kind)
    if len(operations) > MULTI_OPERATIONS_MAX:
        raise RequestTooLarge(f"{len(operations)} operations, at most {MULTI_OPERATIONS_MAX}")
    size_bytes = sum(map(_size_of, operations))
    if size_bytes > MULTI_BYTES_MAX:
        raise RequestTooLarge(f"a multi of {size_bytes} bytes, at most {MULTI_BYTES_MAX}")


def _size_of(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | Set) else b""
    return len(operation.path.encode()) + len(data)
