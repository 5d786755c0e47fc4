"""The command line as a whole: what it says of itself, and what it costs to start."""

import os
import platform
import sys
from subprocess import run

import pytest

from cli_kit import millstream
from millstream import __version__
from millstream.cli import main
from millstream.kernels import _select
from millstream.model.invariant import InvariantViolated
from millstream.runtime import fatal


def test_version_tells_python_and_kernels() -> None:
    done = millstream("version")
    assert done.code == 0
    assert __version__ in done.out
    assert platform.python_version() in done.out
    kernels = "compiled" if _select._is_built("batches") else "plain Python"
    assert f"kernels    {kernels}" in done.out


def test_version_option_is_one_line() -> None:
    done = millstream("--version")
    assert (done.code, done.out) == (0, f"millstream {__version__}\n")


def test_help_names_every_command() -> None:
    done = millstream("--help")
    assert done.code == 0
    for command in ("up", "broker", "log", "version"):
        assert f" {command} " in done.out


@pytest.mark.parametrize("command", [["version"], ["log", "verify", "."], ["log", "dump", "."]])
def test_an_unknown_choice_of_kernels_is_one_line(command: list[str]) -> None:
    done = run(
        [sys.executable, "-m", "millstream.cli.main", *command],
        env=os.environ | {"MILLSTREAM_KERNELS": "fast"},
        capture_output=True,
        text=True,
        check=False,
    )
    told = "millstream: MILLSTREAM_KERNELS is 'fast'; it can be 'plain' or 'compiled'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


def test_unknown_command_is_refused() -> None:
    done = millstream("fly")
    assert done.code == 2
    assert "No such command" in done.err


def test_help_needs_none_of_the_heavy_modules() -> None:
    """The start of every command: what takes long to import waits until a command needs it."""
    script = (
        "import sys, millstream.cli.main\n"
        "print(*[name for name in ('asyncio', 'rich.table', 'millstream.storage.scan',"
        " 'millstream.kernels.batches', 'lz4') if name in sys.modules])"
    )
    done = run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_violated_invariant_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    violation = InvariantViolated("I-99 test")

    def violate() -> None:
        raise violation

    ended: list[BaseException] = []
    monkeypatch.setattr(main, "app", violate)
    monkeypatch.setattr(fatal, "end_process", ended.append)
    main.run()
    assert ended == [violation]
