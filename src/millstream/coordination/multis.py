"""What one multi may hold: more than a megabyte would close the connection instead of failing."""

from collections.abc import Sequence

from millstream.coordination.errors import RequestTooLarge
from millstream.coordination.port import (
    MULTI_BYTES_MAX,
    MULTI_OPERATIONS_MAX,
    Create,
    Operation,
    Set,
)


def check_size(operations: Sequence[Operation]) -> None:
    """Raise RequestTooLarge for a multi that must be split."""
    if len(operations) > MULTI_OPERATIONS_MAX:
        raise RequestTooLarge(f"{len(operations)} operations, at most {MULTI_OPERATIONS_MAX}")
    size_bytes = sum(map(_size_of, operations))
    if size_bytes > MULTI_BYTES_MAX:
        raise RequestTooLarge(f"a multi of {size_bytes} bytes, at most {MULTI_BYTES_MAX}")


def _size_of(operation: Operation) -> int:
    data = operation.data if isinstance(operation, Create | Set) else b""
    return len(operation.path.encode()) + len(data)
