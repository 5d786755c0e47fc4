"""Log records as text: one line for people, or one JSON object for machines.

Everything a client can choose (ids, topic names, error texts) is escaped, so that no client can
forge log lines or move the terminal's cursor.
"""

import logging
from datetime import UTC, datetime
from typing import Any, Final

from millstream.observe.redaction import HIDDEN, Secret, is_sensitive

FIELDS_ATTRIBUTE: Final = "millstream_fields"
"""Where a LogRecord carries its fields."""

VALUE_LENGTH_MAX: Final = 1000
"""A client's text in a log line is truncated: it may be as long as a frame."""

LEVEL_NAMES: Final = {5: "TRACE", 10: "DEBUG", 20: "INFO", 30: "WARN", 40: "ERROR", 50: "FATAL"}
"""Kafka's names, as DescribeConfigs shows them for a broker's loggers."""


def level_name(level: int) -> str:
    """Kafka's name of a level of the logging module."""
    fitting = [name for number, name in LEVEL_NAMES.items() if number <= level]
    return fitting[-1] if fitting else "TRACE"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, FIELDS_ATTRIBUTE, {})
    return fields


def _shown(name: str, value: object) -> str | int | float | bool | None:
    """The value as it is logged, with secrets hidden."""
    if isinstance(value, Secret) or is_sensitive(name):
        return HIDDEN
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, BaseException):
        text = f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    else:
        text = str(value)
    return text if len(text) <= VALUE_LENGTH_MAX else text[:VALUE_LENGTH_MAX] + "..."


def escape_line(text: str) -> str:
    """The text with characters that are not printable escaped."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def _quoted(value: object) -> str:
    """The value, quoted unless it is one word."""
    text = escape_line(str(value))
    if text and not any(one in ' "=\\' for one in text):
        return text
    return '"' + text.replace("\\", r"\\").replace('"', r"\"") + '"'


class HumanFormatter(logging.Formatter):
    """`2026-01-02 03:04:05.678 INFO  broker.server: message key=value`, UTC.

    With a node, `[2]` is before the logger.
    """

    def __init__(self, node: int | None = None) -> None:
        super().__init__()
        self._node = "" if node is None else f"[{node}] "

    def format(self, record: logging.LogRecord) -> str:
        timestamp = datetime.fromtimestamp(record.created, tz=UTC)
        words = [
            f"{timestamp:%Y-%m-%d %H:%M:%S}.{timestamp.microsecond // 1000:03d}",
            f"{level_name(record.levelno):<5}",
            f"{self._node}{record.name.removeprefix('millstream.')}:",
            escape_line(record.getMessage()),
        ]
        for name, value in _fields(record).items():
            words.append(f"{name}={_quoted(_shown(name, value))}")
        line = " ".join(words)
        trace = self._trace(record)
        return f"{line}\n{trace}" if trace else line

    def _trace(self, record: logging.LogRecord) -> str:
        """Indented, so that no line of an error's text can pass for a log line."""
        if not record.exc_info:
            return ""
        lines = self.formatException(record.exc_info).splitlines()
        return "\n".join("    " + escape_line(one) for one in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line; our own keys win over fields of the same name."""

    def __init__(self, node: int | None = None) -> None:
        super().__init__()
        self._node: dict[str, object] = {} if node is None else {"node": node}
        from json import JSONEncoder  # imported only if JSON is used

        self._encode = JSONEncoder(ensure_ascii=True).encode

    def format(self, record: logging.LogRecord) -> str:
        timestamp = datetime.fromtimestamp(record.created, tz=UTC)
        entry: dict[str, object] = {
            "time": f"{timestamp:%Y-%m-%dT%H:%M:%S}.{timestamp.microsecond:06d}Z",
            "level": level_name(record.levelno),
            **self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in _fields(record).items():
            entry.setdefault(name, _shown(name, value))
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return self._encode(entry)
