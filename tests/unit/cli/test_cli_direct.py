"""The short way into `broker` and `up`: it means what the library's long way means, or declines."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kits.process.cli_kit import millstream
from millstream.broker import process
from millstream.cli import brokers_up, direct

PLAIN = [
    ["broker", "--config", "server.properties"],
    ["broker", "--config=a=b.toml"],
    ["broker", "--zookeeper", "a:1,b:2", "--config", "server.properties"],
    ["broker", "--lifeline", "0", "--config", "server.properties"],
    ["up"],
    ["up", "--port", "0"],
    ["up", "--data-dir=/tmp/x y", "--host", "0.0.0.0", "--port=19092", "--brokers", "1"],
    ["up", "--brokers", "3"],
    ["up", "--port", "99999"],
    ["broker", "--lifeline", "0", "--metrics-port", "9404", "--config", "server.properties"],
    ["up", "--config", "a=b", "--port", "0", "--config=c=d=e", "--config", "words"],
]
LEFT_TO_THE_LIBRARY = [
    [],
    ["--help"],
    ["--version"],
    ["version"],
    ["log", "verify", "."],
    ["broker"],
    ["broker", "--help"],
    ["broker", "--config"],
    ["broker", "--config", ""],
    ["broker", "--config", "--help"],
    ["broker", "--config", "a", "--config", "b"],
    ["broker", "--conf", "a"],
    ["broker", "--config", "a", "--lifeline", "me"],
    ["broker", "a"],
    ["broker", "--", "--config", "a"],
    ["up", "--port", "many"],
    ["up", "--port", "-1"],
    ["up", "--port", " 9092"],
    ["up", "--port", "٣"],
    ["up", "--brokers="],
    ["up", "--config="],
    ["up", "--config", "--port"],
    ["broker", "--config", "a", "--metrics-port", "99999"],
    ["up", "extra"],
]
WORDS = st.one_of(
    st.sampled_from(["--config", "--brokers", "--port", "--data-dir", "--host", "--help", "--"]),
    st.sampled_from(
        [
            "1",
            "0",
            "9092",
            "x",
            "",
            "-1",
            "a b",
            "--port=7",
            "--host=h",
            "--config=f",
            "--zookeeper",
        ]
    ),
    st.text(alphabet="-=ab1 ", max_size=6),
)


class Calls:
    """What was asked for, in either way, without doing it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: list[Any] = []
        monkeypatch.setattr(process, "run", self._note)
        monkeypatch.setattr(brokers_up, "run", self._note)
        # It would stay off, as nothing is run here that turns it on again.
        monkeypatch.setattr(gc, "disable", lambda: None)

    def _note(self, asked: object, **options: object) -> int:
        self.found.append((asked, options) if options else asked)
        return 7

    def directly(self, arguments: Sequence[str]) -> list[Any]:
        self.found.clear()
        command = direct.command_of(arguments)
        if command is not None:
            assert command() == 7
        return list(self.found)

    def by_the_library(self, arguments: Sequence[str]) -> list[Any]:
        self.found.clear()
        done = millstream(*arguments)
        assert done.code == 7 or not self.found
        return list(self.found)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


@pytest.mark.parametrize("arguments", PLAIN, ids=" ".join)
def test_plain_options_are_taken_and_mean_the_same(calls: Calls, arguments: list[str]) -> None:
    found = calls.directly(arguments)
    assert len(found) == 1
    assert found == calls.by_the_library(arguments)


@pytest.mark.parametrize("arguments", LEFT_TO_THE_LIBRARY, ids=" ".join)
def test_everything_else_is_left_to_the_library(arguments: list[str]) -> None:
    assert direct.command_of(arguments) is None


@given(st.sampled_from(["broker", "up"]), st.lists(WORDS, max_size=5))
@example("up", ["--port", "7", "--port=7"])
@example("broker", ["--config", "-"])
def test_what_is_taken_means_the_same_in_the_library(command: str, words: list[str]) -> None:
    arguments = [command, *words]
    with pytest.MonkeyPatch.context() as monkeypatch:
        calls = Calls(monkeypatch)
        found = calls.directly(arguments)
        if found:
            assert found == calls.by_the_library(arguments)


def test_a_settings_path_is_a_path(calls: Calls) -> None:
    found = calls.directly(["broker", "--config", "a/b"])
    assert found == [(Path("a/b"), {"zookeeper": None, "lifeline": None, "metrics_port": None})]
