"""Log lines that clients can cause: few, whoever sends how much, and nothing is forgotten."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.model.limits import (
    LOG_CHANGES_PER_INTERVAL_MAX,
    LOG_CLIENTS_PER_INTERVAL_MAX,
    LOG_DEBUG_PER_INTERVAL_MAX,
    LOG_FLOOD_INTERVAL_S,
    LOG_FLOOD_LINES_MAX,
    LOG_INTERVAL_S,
    LOG_LINE_KINDS_MAX,
    LOG_ONCE_INTERVAL_S,
)
from millstream.observe.client_log import ClientLog
from millstream.observe.line_limiter import LineLimiter, LineLimits, Suppressed
from millstream.observe.log_format import FIELDS_ATTRIBUTE, JsonFormatter
from millstream.observe.log_stream import LineHandler
from millstream.observe.logs import get_logger, set_logger_level

NAME = "millstream.test.client_log"
LIMITS = LineLimits(interval_s=10, per_source_max=1, sources_max=2)


class HandClock:
    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        raise AssertionError


class Kept(logging.Handler):
    """Keeps (message, fields)."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.getMessage(), getattr(record, FIELDS_ATTRIBUTE)))


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    root = logging.getLogger("millstream")
    get_logger(NAME)
    set_logger_level(NAME, "INFO")
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)
    set_logger_level(NAME, "INFO")


def of(kind: str, source: str = "", *, lines: int) -> Suppressed:
    return Suppressed(kind, source, lines)


# -- the machine -------------------------------------------------------------------------------


def test_a_source_has_its_lines_once_per_interval() -> None:
    limiter = LineLimiter(LIMITS)
    assert [limiter.allows("k", "a", 0.0) for _ in range(4)] == [True, False, False, False]
    assert limiter.allows("k", "b", 1.0)
    assert limiter.allows("other", "a", 1.0), "each kind has its own"
    assert limiter.take_ended(9.9) == []
    assert limiter.take_ended(10.0) == [of("k", "a", lines=3)]
    assert limiter.allows("k", "a", 10.0)
    assert limiter.take_ended(30.0) == []


def test_who_has_many_addresses_gets_no_more_lines() -> None:
    limiter = LineLimiter(LIMITS)
    allowed = [limiter.allows("k", f"host {number}", 0.0) for number in range(1000)]
    assert sum(allowed) == LIMITS.sources_max
    assert limiter.take_ended(10.0) == [of("k", lines=998)]


def test_what_is_kept_is_bounded() -> None:
    limiter = LineLimiter(LIMITS)
    for number in range(3 * LOG_LINE_KINDS_MAX):
        for source in range(5):
            limiter.allows(f"kind {number}", f"host {source}", 0.0)
    assert len(limiter._windows) == LOG_LINE_KINDS_MAX + 1
    assert max(len(one.lines) for one in limiter._windows.values()) == LIMITS.sources_max
    suppressed = sum(one.lines for one in limiter.take_ended(10.0))
    assert suppressed == 15 * LOG_LINE_KINDS_MAX - 2 * (LOG_LINE_KINDS_MAX + 1)
    assert not limiter._windows


# -- the lines ---------------------------------------------------------------------------------


def test_twenty_thousand_lines_are_one_and_their_number(kept: Kept) -> None:
    clock, log = HandClock(), get_logger(NAME)
    lines = ClientLog(clock)
    for number in range(20_000):
        lines.warning(log, "envelope without a request", client="10.0.0.1", number=number)
    lines.error(log, "trouble", client="")
    clock.now_s += LOG_INTERVAL_S
    lines.sweep()
    lines.sweep()
    assert kept.lines == [
        ("envelope without a request", {"client": "10.0.0.1", "number": 0}),
        ("trouble", {}),
        (
            "log lines suppressed",
            {"kind": "envelope without a request", "suppressed": 19_999, "client": "10.0.0.1"},
        ),
    ]


def test_the_next_line_of_a_kind_comes_after_what_was_suppressed(kept: Kept) -> None:
    """Also where nobody sweeps."""
    clock, log = HandClock(), get_logger(NAME)
    lines = ClientLog(clock)
    for _ in range(3):
        lines.warning(log, "trouble", client="a")
    clock.now_s += LOG_INTERVAL_S
    lines.warning(log, "trouble", client="a")
    suppressed = [values.get("suppressed") for _, values in kept.lines]
    assert suppressed == [None, 2, None]


def test_addresses_have_lines_of_their_own_up_to_a_number(kept: Kept) -> None:
    lines = ClientLog(HandClock())
    for number in range(1000):
        lines.warning(get_logger(NAME), "trouble", client=f"host {number}")
    lines.close()
    clients = LOG_CLIENTS_PER_INTERVAL_MAX
    assert len(kept.lines) == clients + 1
    assert kept.lines[-1][1] == {"kind": "trouble", "suppressed": 1000 - clients}


def test_some_lines_come_once_an_hour(kept: Kept) -> None:
    clock = HandClock()
    lines = ClientLog(clock)
    for _ in range(100):
        lines.warning_once(get_logger(NAME), "not a broker", client="a")
        clock.now_s += LOG_ONCE_INTERVAL_S / 101
        lines.sweep()
    assert len(kept.lines) == 1


def test_changes_and_debug_lines_are_limited_higher_up(kept: Kept) -> None:
    lines, log = ClientLog(HandClock()), get_logger(NAME)
    for _ in range(1000):
        lines.debug(log, "detail", client="a")
    assert not kept.lines, "the level is not in force"
    set_logger_level(NAME, "DEBUG")
    for _ in range(1000):
        lines.debug(log, "detail", client="a")
        lines.change(log, "topic created")
    messages = [message for message, _ in kept.lines]
    assert messages.count("detail") == LOG_DEBUG_PER_INTERVAL_MAX
    assert messages.count("topic created") == LOG_CHANGES_PER_INTERVAL_MAX


# -- every line of the process -----------------------------------------------------------------


class Written:
    """A stream that keeps lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write_line(self, line: str) -> None:
        self.lines.append(json.loads(line))

    def flush(self, *, waits_max: int = 0) -> None: ...


def test_no_line_floods_whatever_causes_it() -> None:
    """As with the 150,797 lines of a process that had no memory left."""
    clock, written = HandClock(), Written()
    handler = LineHandler(written, clock)  # type: ignore[arg-type]
    handler.setFormatter(JsonFormatter())

    def emit(message: str, *arguments: object) -> None:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 0, message, arguments, None)
        handler.handle(record)

    for number in range(LOG_FLOOD_LINES_MAX + 500):
        emit("failed %d\nmore text %d", number, number)
    emit("another")
    assert len(written.lines) == LOG_FLOOD_LINES_MAX + 1
    clock.now_s += LOG_FLOOD_INTERVAL_S
    handler.flush()
    last = written.lines[-1]
    assert (last["kind"], last["suppressed"]) == ("asyncio: failed %d", 500)
    assert last["level"] == "WARN"
    for _ in range(LOG_FLOOD_LINES_MAX + 1):
        emit("failed %d\nmore text %d", 1, 1)
    handler.close()
    assert written.lines[-1]["suppressed"] == 1, "at the end of the process"
