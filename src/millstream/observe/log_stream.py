"""Non-blocking standard error: a reader that stops reading must not stop the broker.

Before every write the descriptor is polled for writability. What it does not accept is kept, up to
a limit, and written with the next line; beyond the limit lines are dropped and their number is
logged. There is no thread, so a process that ends abruptly has written its last line.
"""

import logging
import os
import select
from collections import deque
from typing import Any, Final

from millstream.model.limits import LOG_FLOOD_INTERVAL_S, LOG_FLOOD_LINES_MAX
from millstream.observe.line_limiter import LineLimiter, LineLimits, Suppressed
from millstream.observe.log_format import FIELDS_ATTRIBUTE
from millstream.runtime.clock import Clock
from millstream.runtime.fatal import end_if_fatal

BACKLOG_BYTES_MAX: Final = 1024 * 1024
"""Lines kept for a slow reader: a burst of a few thousand."""

_CLOSE_WAIT_MS: Final = 250
_CLOSE_WAITS_MAX: Final = 4
"""How often a stopping process waits for a slow reader before it ends."""

_STANDARD_ERROR: Final = 2

_FLOOD: Final = LineLimits(LOG_FLOOD_INTERVAL_S, LOG_FLOOD_LINES_MAX, 1)

_KIND_LENGTH_MAX: Final = 200


class LineStream:
    """Writes lines to a descriptor without ever waiting for it."""

    def __init__(self, descriptor: int, *, backlog_bytes_max: int = BACKLOG_BYTES_MAX) -> None:
        self._descriptor = descriptor
        self._backlog_bytes_max = backlog_bytes_max
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._dropped = 0
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write_line(self, line: str) -> None:
        """Write, keep or drop the line, without waiting."""
        data = line.encode(errors="backslashreplace") + b"\n"
        self.flush()
        if self._backlog_bytes + len(data) > self._backlog_bytes_max:
            self._dropped += 1
            return
        if self._dropped:
            note = b"(%d log lines were dropped: the reader was too slow)\n" % self._dropped
            self._keep(note)
            self._dropped = 0
        self._keep(data)
        self.flush()

    def flush(self, *, waits_max: int = 0) -> None:
        """Write what the descriptor accepts; waiting is for the end of the process only."""
        while self._backlog:
            if self._is_ready(0):
                if not self._write_some():
                    return
            elif not waits_max or not self._is_ready(_CLOSE_WAIT_MS):
                return
            else:
                waits_max -= 1

    def _is_ready(self, wait_ms: int) -> bool:
        return any(events & select.POLLOUT for _, events in self._poll.poll(wait_ms))

    def _write_some(self) -> bool:
        """One write; False if the descriptor accepts no more after all."""
        data = self._backlog.popleft()
        try:
            # A pipe that is ready has room for this much; more could block.
            written = os.write(self._descriptor, data[: select.PIPE_BUF])
        except BlockingIOError:
            self._backlog.appendleft(data)
            return False
        except OSError:
            # There is nowhere to report it, and logging must not end the process.
            written = len(data)
        self._backlog_bytes -= written
        if written < len(data):
            self._backlog.appendleft(data[written:])
        return True

    def _keep(self, data: bytes) -> None:
        self._backlog.append(data)
        self._backlog_bytes += len(data)


class LineHandler(logging.Handler):
    """The one handler of the program; limits lines of every kind, whatever causes them."""

    def __init__(self, stream: LineStream, clock: Clock) -> None:
        super().__init__()
        self._stream = stream
        self._clock = clock
        self._limiter = LineLimiter(_FLOOD)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now_s = self._clock.monotonic_s()
            self._report(self._limiter.take_ended(now_s))
            if self._limiter.allows(_kind_of(record), "", now_s):
                self._stream.write_line(self.format(record))
        except Exception as error:  # noqa: BLE001 - as every handler of the logging module does
            end_if_fatal(error)
            self.handleError(record)

    def flush(self) -> None:
        """Write what was kept; cheap if there is nothing."""
        self.acquire()
        try:
            self._report(self._limiter.take_ended(self._clock.monotonic_s()))
            self._stream.flush()
        finally:
            self.release()

    def close(self) -> None:
        self.acquire()
        try:
            self._report(self._limiter.take_all())
            self._stream.flush(waits_max=_CLOSE_WAITS_MAX)
        finally:
            self.release()
        super().close()

    def _report(self, suppressed: list[Suppressed]) -> None:
        for kind, _, lines in suppressed:
            line: dict[str, Any] = {
                "name": __name__,
                "levelno": logging.WARNING,
                "msg": "log lines suppressed",
                FIELDS_ATTRIBUTE: {"kind": kind, "suppressed": lines},
            }
            self._stream.write_line(self.format(logging.makeLogRecord(line)))


def _kind_of(record: logging.LogRecord) -> str:
    """The message before values are inserted, of which libraries' messages have some."""
    first_line = str(record.msg)[:_KIND_LENGTH_MAX].partition("\n")[0]
    return f"{record.name}: {first_line}"


def standard_error() -> LineStream:
    """The process's own standard error, whatever `sys.stderr` was replaced with."""
    return LineStream(_STANDARD_ERROR)
