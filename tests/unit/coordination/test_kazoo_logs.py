"""kazoo's lines: a warning now and then, the rest for debugging."""

import logging

from millstream.coordination.kazoo_logs import WARNING_INTERVAL_S, RateLimitFilter


def passed(level: int, *lines: tuple[int, float]) -> list[tuple[int, float]]:
    """Of lines, as level and time, those that a logger of this level writes."""
    logger = logging.Logger("kazoo", level)
    few, written = RateLimitFilter(logger), []
    for number, time_s in lines:
        record = logger.makeRecord("kazoo", number, "", 0, "Connection dropped", (), None)
        record.created = time_s
        if few.filter(record):
            written.append((record.levelno, time_s))
    return written


def test_a_service_that_is_away_costs_a_line_in_ten_seconds() -> None:
    attempts = [(level, at / 4) for at in range(400) for level in (logging.INFO, logging.WARNING)]
    written = passed(logging.INFO, *attempts)
    assert written == [(logging.WARNING, at * WARNING_INTERVAL_S) for at in range(10)]


def test_everything_is_there_for_debugging_and_errors_always() -> None:
    lines = [(logging.WARNING, 1.0), (logging.INFO, 1.0), (logging.WARNING, 2.0)]
    wanted = [(logging.WARNING, 1.0), (logging.DEBUG, 1.0), (logging.DEBUG, 2.0)]
    assert passed(logging.DEBUG, *lines) == wanted
    errors = [(logging.ERROR, 1.0), (logging.ERROR, 1.0)]
    assert passed(logging.INFO, *errors) == errors


def test_a_clock_that_goes_back_does_not_silence_warnings() -> None:
    lines = [(logging.WARNING, 1_000.0), (logging.WARNING, 3.0)]
    assert passed(logging.INFO, *lines) == lines
