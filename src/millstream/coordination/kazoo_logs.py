"""Rate-limits kazoo's own log lines.

kazoo logs every step of every attempt to connect: several lines a second from each broker for as
long as no server answers. The holder of the session logs whether the service is reachable; of
kazoo's lines an occasional warning is kept, for the reason in it.
"""

import logging
from typing import Final

WARNING_INTERVAL_S: Final = 10.0
"""The time between two warnings of kazoo."""


class RateLimitFilter(logging.Filter):
    """Lowers everything below ERROR to DEBUG, except one warning in each interval."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._warned_s = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; its level may be lowered to DEBUG."""
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
