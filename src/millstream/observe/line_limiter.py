"""Which log lines are written when clients can cause any number of them. Pure.

A line has a kind, which is a text of the program, and a source, which may be anything that a client
can choose. Each kind has a window, which begins with its first line. In a window a source has few
lines, and so do all sources together: a client with many addresses gets no more of the log than
one. What was suppressed is counted, and reported when the window ends.
"""

from typing import Final, NamedTuple

from millstream.model.limits import LOG_LINE_KINDS_MAX

OTHER_KINDS: Final = ""
"""Of the lines whose kind has no window any more, because there are too many."""

OTHER_SOURCES: Final = ""
"""Of the suppressed lines of sources that had none in their window."""


class LineLimits(NamedTuple):
    """Of every kind."""

    interval_s: float
    per_source_max: int
    """Lines of one source in an interval."""
    sources_max: int
    """Sources that may have lines in an interval."""


class Suppressed(NamedTuple):
    """What was not written in a window that ended."""

    kind: str
    source: str
    lines: int


class _Window:
    __slots__ = ("begun_s", "lines", "other_sources")

    def __init__(self, begun_s: float) -> None:
        self.begun_s = begun_s
        self.lines: dict[str, int] = {}
        """Of each source, those suppressed included."""
        self.other_sources = 0


class LineLimiter:
    """Of one process, or one part of it. The caller passes the time, which only grows."""

    def __init__(self, limits: LineLimits) -> None:
        self._limits = limits
        self._windows: dict[str, _Window] = {}
        """In the order in which they began, and so in that in which they end."""

    def allows(self, kind: str, source: str, now_s: float) -> bool:
        """Whether the line is written; call `take_ended` before, so that no window is too old."""
        window = self._windows.get(kind)
        if window is None:
            if len(self._windows) >= LOG_LINE_KINDS_MAX and kind != OTHER_KINDS:
                return self.allows(OTHER_KINDS, source, now_s)
            window = self._windows[kind] = _Window(now_s)
        lines = window.lines.get(source, 0)
        if not lines and len(window.lines) >= self._limits.sources_max:
            window.other_sources += 1
            return False
        window.lines[source] = lines + 1
        return lines < self._limits.per_source_max

    def take_ended(self, now_s: float) -> list[Suppressed]:
        """What windows suppressed that have ended by now; they are forgotten."""
        suppressed: list[Suppressed] = []
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now_s - window.begun_s < self._limits.interval_s:
                break
            suppressed += self._report(kind, window)
            del self._windows[kind]
        return suppressed

    def take_all(self) -> list[Suppressed]:
        """What was suppressed so far, at the end of the process."""
        windows, self._windows = self._windows, {}
        return [one for kind, window in windows.items() for one in self._report(kind, window)]

    def _report(self, kind: str, window: _Window) -> list[Suppressed]:
        allowed = self._limits.per_source_max
        found = [
            Suppressed(kind, source, lines - allowed)
            for source, lines in window.lines.items()
            if lines > allowed
        ]
        if window.other_sources:
            found.append(Suppressed(kind, OTHER_SOURCES, window.other_sources))
        return found
