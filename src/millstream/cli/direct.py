"""`broker` and `up` with common options, without loading Typer.

Loading it would be a third of a broker's start. Options that are parsed here mean what they mean
there, and a test compares them; anything else, from `--help` to a mistyped number, is left to
Typer, so that there is one place for help and errors.
"""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_OPTIONS: Final = {
    "broker": frozenset({"--config", "--lifeline", "--metrics-port", "--zookeeper"}),
    "up": frozenset({"--brokers", "--port", "--data-dir", "--host"}),
}
_REPEATED: Final = {"broker": "", "up": "--config"}
_NUMBER_DIGITS_MAX: Final = 9
_PORT_MAX: Final = 65535


def command_of(arguments: Sequence[str]) -> Callable[[], int] | None:
    """The command to run, if it is one of these; calling it returns the exit code."""
    if not arguments or arguments[0] not in _OPTIONS:
        return None
    found = _options(arguments[1:], _OPTIONS[arguments[0]], _REPEATED[arguments[0]])
    if found is None:
        return None
    given, repeated = found
    return _broker(given) if arguments[0] == "broker" else _up(given, repeated)


def _options(
    arguments: Sequence[str], known: frozenset[str], repeated: str
) -> tuple[dict[str, str], list[str]] | None:
    """Options with their values, each once, and the values of the one that may be repeated.

    None for anything else.
    """
    given: dict[str, str] = {}
    values: list[str] = []
    words = iter(arguments)
    for word in words:
        name, has_value, value = word.partition("=")
        if not has_value:
            value = next(words, "")
        if not value or value.startswith("-"):
            return None
        if name == repeated:
            values.append(value)
            continue
        if name not in known or name in given:
            return None
        given[name] = value
    return given, values


def _broker(given: dict[str, str]) -> Callable[[], int] | None:
    numbers = {name: given.get(name, "0") for name in ("--lifeline", "--metrics-port")}
    if "--config" not in given or not all(map(_is_number, numbers.values())):
        return None
    if int(numbers["--metrics-port"]) > _PORT_MAX:
        return None

    def number(name: str) -> int | None:
        return int(numbers[name]) if name in given else None

    def run_broker() -> int:
        # Imports make many objects and no garbage; `run` enables it when the broker is ready.
        gc.disable()
        from millstream.broker.process import run

        return run(
            Path(given["--config"]),
            zookeeper=given.get("--zookeeper"),
            lifeline=number("--lifeline"),
            metrics_port=number("--metrics-port"),
        )

    return run_broker


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _NUMBER_DIGITS_MAX


def _up(given: dict[str, str], configs: Sequence[str]) -> Callable[[], int] | None:
    numbers: dict[str, int] = {}
    for name in ("--brokers", "--port"):
        text = given.get(name, "1")
        if not _is_number(text):
            return None
        numbers[name] = int(text)

    def run_up() -> int:
        from millstream.cli import brokers_up

        return brokers_up.run(
            brokers_up.UpOptions(
                brokers=numbers["--brokers"] if "--brokers" in given else None,
                port=numbers["--port"] if "--port" in given else None,
                data_dir=Path(given.get("--data-dir", brokers_up.DATA_DIR_DEFAULT)),
                host=given.get("--host"),
                configs=tuple(configs),
            )
        )

    return run_up
