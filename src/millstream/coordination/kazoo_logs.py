"""kazoo's own log lines, made few.

kazoo tells every step of every attempt to connect: several lines a second from each broker for as
long as no server answers. Whether the service is away or back is told by who holds the session;
of kazoo's lines a warning now and then is left, for the reason in it.
"""

import logging
from typing import Final

WARNING_INTERVAL_S: Final = 10.0
"""Between two warnings of kazoo."""


class FewLines(logging.Filter):
    """Everything below an error is for debugging, but for one warning in each interval."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._warned_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; it may become one for debugging."""
        if record.levelno >= logging.ERROR or self._is_due(record):
            return True
        record.levelno = min(record.levelno, logging.DEBUG)
        record.levelname = logging.getLevelName(record.levelno)
        return self._logger.isEnabledFor(record.levelno)

    def _is_due(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return False
        if 0 <= record.created - self._warned_s < WARNING_INTERVAL_S:
            return False
        self._warned_s = record.created
        return True
