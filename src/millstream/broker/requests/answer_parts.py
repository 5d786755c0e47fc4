"""Parts of an answer: bytes, and ranges of segment files that stay pinned until they are sent."""

from collections import deque
from collections.abc import Sequence

from millstream.broker.requests.context import AnswerPart
from millstream.storage.log.reader import ReadSlice


def size_of(part: AnswerPart) -> int:
    """Bytes that a part of an answer has on the wire."""
    return part.size_bytes if isinstance(part, ReadSlice) else len(part)


def memory_of(part: AnswerPart) -> int:
    """Bytes that it takes in memory: a range is read only when it is sent."""
    return 0 if isinstance(part, ReadSlice) else len(part)


def path_of(part: AnswerPart) -> str:
    """Of the file that a part is read from; "" where it is bytes."""
    return part.file.path if isinstance(part, ReadSlice) and part.file is not None else ""


def release(parts: Sequence[object] | deque[AnswerPart]) -> None:
    """Unpin the files of ranges that will not be sent."""
    for part in parts:
        if isinstance(part, ReadSlice) and part.file is not None:
            part.file.unpin()
