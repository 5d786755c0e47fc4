"""Structured logs on the logging module: a message that never varies, and fields that do.

    log = get_logger("millstream.broker.net.server")
    log.info("partition created", topic=name, partition=index)
    log.error("request failed", api=name, error=error)      # with the error's trace

Loggers do nothing until the program calls `configure`: a broker inside a test process does not
change that process's logging. Nothing on a hot path logs; lines that clients can cause go through
`observe/client_log.py`.
"""

import logging
import os
from enum import StrEnum
from typing import Any, Final

from millstream.model.errors import OperatingError
from millstream.observe.log_format import (
    FIELDS_ATTRIBUTE,
    LEVEL_NAMES,
    HumanFormatter,
    JsonFormatter,
    level_name,
)
from millstream.observe.log_stream import LineHandler, LineStream, standard_error
from millstream.observe.redaction import Secret
from millstream.runtime.clock import Clock, SystemClock

__all__ = [
    "Log",
    "LogFormat",
    "Secret",
    "configure",
    "fields",
    "flush",
    "get_logger",
    "logger_levels",
    "reset_logger_level",
    "set_logger_level",
]

OUR_ROOT: Final = "millstream"
ROOT_NAME: Final = "root"
"""Kafka's name of the root logger."""

_LEVELS: Final = {name: number for number, name in LEVEL_NAMES.items()} | {"WARNING": 30}


# Without any handler, the logging module would write warnings to standard error.
logging.getLogger(OUR_ROOT).addHandler(logging.NullHandler())


class UnknownLogger(OperatingError):
    """A level was to be set on a logger that does not exist."""


class UnknownLogLevel(OperatingError):
    """Not one of Kafka's level names."""


class LogFormat(StrEnum):
    """The format of log lines."""

    HUMAN = "human"
    JSON = "json"
    AUTO = "auto"
    """Human on a terminal, else JSON."""


def fields(**values: object) -> dict[str, object]:
    """For `extra=` of the logging module's own methods."""
    return {FIELDS_ATTRIBUTE: values}


class Log:
    """A logger whose keyword arguments are the line's fields.

    A field named `error` that is an exception adds its traceback at level error.
    """

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def is_enabled(self, level: int) -> bool:
        """Whether lines of this level are written; for fields that are expensive to compute."""
        return self._logger.isEnabledFor(level)

    def debug(self, message: str, **values: object) -> None:
        self.write(logging.DEBUG, message, values)

    def info(self, message: str, **values: object) -> None:
        self.write(logging.INFO, message, values)

    def warning(self, message: str, **values: object) -> None:
        self.write(logging.WARNING, message, values)

    def error(self, message: str, **values: object) -> None:
        self.write(logging.ERROR, message, values)

    def write(self, level: int, message: str, values: dict[str, Any]) -> None:
        """Write a line of any level; the named methods use this."""
        if not self._logger.isEnabledFor(level):
            return
        error = values.get("error") if level >= logging.ERROR else None
        trace = error if isinstance(error, BaseException) else None
        # Three frames up is the caller of debug(), info(), ...
        self._logger.log(
            level, message, exc_info=trace, extra={FIELDS_ATTRIBUTE: values}, stacklevel=3
        )


def get_logger(name: str) -> Log:
    """The logger of a module; `name` is the module's full name."""
    return Log(logging.getLogger(name))


# -- for the program -------------------------------------------------------------------------------


def configure(
    *,
    level: str = "INFO",
    log_format: LogFormat = LogFormat.AUTO,
    stream: LineStream | None = None,
    node: int | None = None,
    clock: Clock | None = None,
) -> LineHandler:
    """Send the lines of the whole process to standard error; replaces an earlier handler of ours.

    For programs, not for libraries: it configures the root logger, so that asyncio's and other
    libraries' lines have the same format. `node` is in every line: it identifies the broker if
    several write to one terminal or file.
    """
    number = _level_number(level)
    if log_format is LogFormat.AUTO:
        log_format = LogFormat.HUMAN if os.isatty(2) else LogFormat.JSON
    handler = LineHandler(
        stream if stream is not None else standard_error(), clock or SystemClock()
    )
    is_human = log_format is LogFormat.HUMAN
    handler.setFormatter(HumanFormatter(node) if is_human else JsonFormatter(node))
    root = logging.getLogger()
    for former in [one for one in root.handlers if isinstance(one, LineHandler)]:
        root.removeHandler(former)
        former.close()
    root.addHandler(handler)
    root.setLevel(number)
    return handler


def flush() -> None:
    """Write what standard error did not accept so far; call it regularly (once a second)."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineHandler):
            handler.flush()


def logger_levels() -> dict[str, str]:
    """Every logger of ours, and the root, with the level in force; as Kafka describes them."""
    known = [name for name in logging.root.manager.loggerDict if _is_ours(name)]
    levels = {name: logging.getLogger(name).getEffectiveLevel() for name in sorted(known)}
    levels[ROOT_NAME] = logging.getLogger().getEffectiveLevel()
    return {name: level_name(level) for name, level in levels.items()}


def set_logger_level(name: str, level: str) -> None:
    """Change a level at run time; child loggers inherit it unless they have their own."""
    _existing(name).setLevel(_level_number(level))


def reset_logger_level(name: str) -> None:
    """Back to the level of the parent logger; the root logger goes back to INFO."""
    logger = _existing(name)
    logger.setLevel(logging.INFO if logger is logging.root else logging.NOTSET)


def _is_ours(name: str) -> bool:
    return name == OUR_ROOT or name.startswith(OUR_ROOT + ".")


def _existing(name: str) -> logging.Logger:
    if name == ROOT_NAME:
        return logging.getLogger()
    # Not getLogger for any name: it would create the logger, and a client could create many.
    if not _is_ours(name) or name not in logging.root.manager.loggerDict:
        raise UnknownLogger(f"there is no logger {name}")
    return logging.getLogger(name)


def _level_number(level: str) -> int:
    try:
        return _LEVELS[level.upper()]
    except KeyError:
        raise UnknownLogLevel(f"no log level {level!r}; one of {', '.join(_LEVELS)}") from None
