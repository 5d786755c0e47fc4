"""The contract of the client programs (see the README beside), for those written in Python."""

import base64
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

Ask = dict[str, Any]
Action = Callable[[Ask], Any]

TIMEOUT_S: Final = 30.0


class RefusedError(Exception):
    """The client said no. `code` is the broker's error number, None when it never got that far."""

    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(text)
        self.code = code


def serve(actions: Mapping[str, Action]) -> None:
    """Answer line by line until standard input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a client prints must not look like an answer
    for line in sys.stdin:
        answers.write(json.dumps(_answer(actions, json.loads(line))) + "\n")
        answers.flush()


def _answer(actions: Mapping[str, Action], ask: Ask) -> dict[str, Any]:
    try:
        return {"ok": actions[ask["do"]](ask)}
    except RefusedError as refused:
        return {"error": {"code": refused.code, "text": str(refused)}}
    except Exception as error:  # noqa: BLE001 - told to the test, which decides
        traceback.print_exc()
        # Both Python clients name the broker's number so, and leave it out of their own errors.
        code = getattr(error, "errno", None)
        return {"error": {"code": code, "text": f"{type(error).__name__}: {error}"}}


def as_bytes(text: str | None) -> bytes | None:
    """The bytes that the contract carries as text."""
    return None if text is None else base64.b64decode(text)


def as_text(data: bytes | None) -> str | None:
    """The opposite."""
    return None if data is None else base64.b64encode(data).decode()


def headers_of(record: Mapping[str, Any]) -> list[tuple[str, bytes | None]]:
    """Of a record that is to be produced."""
    return [(name, as_bytes(value)) for name, value in record["headers"]]


def consumed(
    *,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
) -> dict[str, Any]:
    """One record as the contract has it."""
    return {
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "key": as_text(key),
        "value": as_text(value),
        "headers": [[name, as_text(data)] for name, data in headers],
    }
