"""Log lines: their form, what may not be in them, levels at run time, a reader that stops."""

import ast
import json
import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millstream
from millstream.observe.log_format import VALUE_LENGTH_MAX, HumanFormatter, JsonFormatter
from millstream.observe.log_stream import LineHandler, LineStream
from millstream.observe.logs import (
    LogFormat,
    Secret,
    UnknownLogger,
    UnknownLogLevel,
    configure,
    fields,
    flush,
    get_logger,
    logger_levels,
    reset_logger_level,
    set_logger_level,
)

NAME = "millstream.test.logs"


class Lines:
    """A pipe that takes log lines, and its other end."""

    def __init__(self) -> None:
        self.read_end, self.write_end = os.pipe()
        self.stream = LineStream(self.write_end, backlog_bytes_max=10_000)
        os.set_blocking(self.read_end, False)

    def read(self) -> str:
        told = b""
        try:
            while data := os.read(self.read_end, 1 << 20):
                told += data
        except BlockingIOError:
            pass
        return told.decode()

    def fill(self) -> None:
        """Fill the pipe as somebody else, so that it takes no more."""
        os.set_blocking(self.write_end, False)
        try:
            while True:
                os.write(self.write_end, b"#" * 512)
        except BlockingIOError:
            os.set_blocking(self.write_end, True)


@pytest.fixture
def lines() -> Iterator[Lines]:
    kept = Lines()
    yield kept
    for descriptor in (kept.read_end, kept.write_end):
        os.close(descriptor)


@pytest.fixture
def configured(lines: Lines) -> Iterator[Lines]:
    root = logging.getLogger()
    level = root.level
    handler = configure(level="INFO", log_format=LogFormat.JSON, stream=lines.stream)
    yield lines
    root.removeHandler(handler)
    root.setLevel(level)


def entries(lines: Lines) -> list[dict[str, Any]]:
    return [json.loads(one) for one in lines.read().splitlines()]


def record(message: str, *, error: Any = None, **values: object) -> Any:
    exc_info = (type(error), error, error.__traceback__) if error is not None else None
    made = logging.LogRecord(NAME, logging.WARNING, "f.py", 1, message, (), exc_info)
    made.created = 1_767_323_045.678
    for name, value in fields(**values).items():
        setattr(made, name, value)
    return made


# -- form ------------------------------------------------------------------------------------------


def test_human_line() -> None:
    line = HumanFormatter().format(record("topic made", topic="a b", partition=3, rack=None))
    assert line == (
        '2026-01-02 03:04:05.678 WARN  test.logs: topic made topic="a b" partition=3 rack=None'
    )


def test_json_line() -> None:
    line = JsonFormatter().format(record("topic made", topic="a", partition=3, level="mine"))
    assert json.loads(line) == {
        "time": "2026-01-02T03:04:05.678000Z",
        "level": "WARN",
        "logger": NAME,
        "message": "topic made",
        "topic": "a",
        "partition": 3,
    }


def test_lines_say_which_broker_wrote_them() -> None:
    """Three brokers of one machine write to one terminal; `broker` may be a field about another."""
    made = record("joined", broker=3)
    assert " WARN  [2] test.logs: joined broker=3" in HumanFormatter(2).format(made)
    entry = json.loads(JsonFormatter(2).format(made))
    assert (entry["node"], entry["broker"]) == (2, 3)


@given(st.text(), st.text())
def test_no_text_makes_a_second_line_or_a_control_character(message: str, value: str) -> None:
    """Client ids and topic names come from outside."""
    for formatter in (HumanFormatter(), JsonFormatter()):
        line = formatter.format(record(message.replace("%", ""), value=value))
        assert line.isprintable()
        assert len(line.splitlines()) == 1


@given(st.text(max_size=100))
def test_json_values_come_back(value: str) -> None:
    assert json.loads(JsonFormatter().format(record("x", value=value)))["value"] == value


def test_a_trace_is_indented_and_cannot_pass_for_a_line() -> None:
    try:
        raise ValueError("bad\n2026-01-02 03:04:05.678 INFO forged: line\x1b[2J")
    except ValueError as error:
        told = HumanFormatter().format(record("failed", error=error))
        entry = json.loads(JsonFormatter().format(record("failed", error=error)))
    first, *rest = told.split("\n")
    assert first.endswith("failed")
    assert all(one.startswith("    ") and one.isprintable() for one in rest)
    assert "ValueError: bad" in told
    assert "ValueError: bad" in entry["trace"]


def test_long_values_are_cut() -> None:
    line = HumanFormatter().format(record("x", value="y" * 1_000_000))
    assert len(line) < VALUE_LENGTH_MAX + 200


# -- secrets ---------------------------------------------------------------------------------------


def test_a_secret_is_not_written_by_any_way_of_printing() -> None:
    secret = Secret("hunter2")
    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>30}",
        "%s" % secret,  # noqa: UP031
        f"{[secret]} { {'x': secret} }",
        HumanFormatter().format(record("x", value=secret, many=[secret])),
        JsonFormatter().format(record("x", value=secret, many=[secret])),
    ]
    assert not any("hunter2" in one for one in shown)
    assert secret.reveal() == "hunter2"


def test_a_secret_is_neither_pickled_nor_hashed_but_compared() -> None:
    secret = Secret("a")
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        hash(secret)
    assert secret == Secret("a") != Secret("b")
    assert secret != "a"
    assert not Secret("")


@pytest.mark.parametrize(
    "name", ["password", "ssl.key.password", "sasl_jaas_config", "token", "client_secret"]
)
def test_fields_with_the_name_of_a_secret_are_hidden(name: str) -> None:
    for formatter in (HumanFormatter(), JsonFormatter()):
        assert "hunter2" not in formatter.format(record("x", **{name: "hunter2"}))


# -- loggers ---------------------------------------------------------------------------------------


def test_lines_carry_fields_and_errors_their_trace(configured: Lines) -> None:
    log = get_logger(NAME)
    log.info("one", number=1)
    log.debug("not shown")
    log.warning("two", error=ValueError("mild"))
    try:
        raise KeyError("lost")
    except KeyError as error:
        log.error("three", error=error)
    logging.getLogger("other.library").warning("of %s", "another", extra=fields(a=1))
    one, two, three, four = entries(configured)
    assert (one["message"], one["number"], one["level"]) == ("one", 1, "INFO")
    assert (two["error"], "trace" in two) == ("ValueError: mild", False)
    assert three["error"] == "KeyError: 'lost'"
    assert "test_lines_carry_fields" in three["trace"]
    assert (four["message"], four["a"], four["logger"]) == ("of another", 1, "other.library")


def test_field_names_may_be_those_of_the_logging_module(configured: Lines) -> None:
    get_logger(NAME).info("x", name="n", args="a", msg="m", module="q", exc_info="e", topic="t")
    (entry,) = entries(configured)
    assert entry["name"] == "n"
    assert entry["args"] == "a"


def test_levels_change_at_run_time_for_one_logger_and_those_below(configured: Lines) -> None:
    upper, lower = get_logger(NAME), get_logger(NAME + ".below")
    assert logger_levels()[NAME] == "INFO"
    set_logger_level(NAME, "ERROR")
    upper.warning("hidden")
    lower.warning("hidden")
    set_logger_level(NAME + ".below", "debug")
    lower.debug("shown")
    assert logger_levels()[NAME] == "ERROR"
    assert logger_levels()[NAME + ".below"] == "DEBUG"
    reset_logger_level(NAME + ".below")
    assert logger_levels()[NAME + ".below"] == "ERROR"
    reset_logger_level(NAME)
    upper.warning("again")
    assert [one["message"] for one in entries(configured)] == ["shown", "again"]
    assert logger_levels()["root"] == "INFO"


def test_unknown_loggers_and_levels_are_refused_and_not_made() -> None:
    get_logger(NAME)
    for name in ("millstream.no.such", "asyncio", "", "millstreamx"):
        with pytest.raises(UnknownLogger):
            set_logger_level(name, "INFO")
    assert "millstream.no.such" not in logger_levels()
    with pytest.raises(UnknownLogLevel, match="TRACE, DEBUG, INFO, WARN, ERROR, FATAL"):
        set_logger_level(NAME, "LOUD")


def test_configuring_again_replaces_the_handler(configured: Lines) -> None:
    other = Lines()
    configure(log_format=LogFormat.HUMAN, stream=other.stream)
    get_logger(NAME).info("moved")
    assert configured.read() == ""
    assert other.read().endswith("moved\n")
    mine = [one for one in logging.getLogger().handlers if isinstance(one, LineHandler)]
    assert len(mine) == 1
    logging.getLogger().removeHandler(mine[0])
    for descriptor in (other.read_end, other.write_end):
        os.close(descriptor)


# -- the stream ------------------------------------------------------------------------------------


def test_a_reader_that_stops_does_not_hold_up_the_writer(lines: Lines) -> None:
    """The pipe is full: with a waiting write this test would hang."""
    lines.fill()
    for number in range(5):
        lines.stream.write_line(f"kept {number}")
    lines.read()
    lines.stream.flush()
    assert lines.read().splitlines() == [f"kept {number}" for number in range(5)]


def test_lines_above_the_limit_are_dropped_and_counted(lines: Lines) -> None:
    lines.fill()
    for number in range(1000):
        lines.stream.write_line(f"line {number:095d}")
    lines.read()
    lines.stream.write_line("after")
    told = lines.read().splitlines()
    kept = [one for one in told if one.startswith("line ")]
    assert kept == [f"line {number:095d}" for number in range(len(kept))]
    assert 90 < len(kept) < 100
    assert told[-2:] == [
        f"({1000 - len(kept)} log lines were dropped: the reader was too slow)",
        "after",
    ]


def test_a_line_larger_than_the_pipe_arrives_whole_in_parts(lines: Lines) -> None:
    stream = LineStream(lines.write_end)
    stream.write_line("x" * 300_000)
    told = ""
    while part := lines.read():
        told += part
        stream.flush()
    assert told == "x" * 300_000 + "\n"


def test_a_reader_that_is_gone_is_no_error() -> None:
    read_end, write_end = os.pipe()
    stream = LineStream(write_end)
    os.close(read_end)
    stream.write_line("x")
    stream.write_line("y")
    os.close(write_end)


def test_flush_writes_what_was_kept(configured: Lines) -> None:
    configured.fill()
    get_logger(NAME).info("late")
    configured.read()
    flush()
    assert [one["message"] for one in entries(configured)] == ["late"]


@pytest.mark.parametrize(("ending", "code"), [("os._exit(3)", 3), ("pass", 0), ("1/0", 1)])
def test_the_last_line_is_written_however_the_process_ends(ending: str, code: int) -> None:
    program = (
        "import os\n"
        "from millstream.observe.logs import configure, get_logger\n"
        "configure()\n"
        "get_logger('millstream.x').info('the last line')\n"
        f"{ending}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, check=False, timeout=60
    )
    assert done.returncode == code
    assert json.loads(done.stderr.splitlines()[0])["message"] == "the last line"


LINE_OWN_KEYS = {"time", "level", "logger", "message", "trace"}


def test_no_field_has_the_name_of_something_that_every_line_has() -> None:
    """The line's own would win in JSON, and what the field says would be lost."""
    taken = []
    for path in Path(millstream.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Name(id="log"), attr="debug" | "info" | "warning" | "error"
                    )
                ):
                    names = {keyword.arg for keyword in node.keywords}
                    taken += [(path.name, node.lineno, one) for one in names & LINE_OWN_KEYS]
    assert taken == []
