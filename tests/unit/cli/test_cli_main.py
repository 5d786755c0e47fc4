"""The command line as a whole: what it says of itself, and what it costs to start."""

import os
import platform
import sys
from subprocess import run

import pytest

from kits.process.cli_kit import millstream
from millstream import __version__
from millstream.cli import app, brokers_up, main
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
    for command in ("up", "broker", "keeper", "topics", "produce", "consume", "log", "version"):
        assert f" {command} " in done.out


@pytest.mark.parametrize(
    "command",
    [
        *([], ["up"], ["broker"], ["keeper"], ["version"], ["produce"], ["consume"]),
        *(["topics"], ["topics", "create"], ["log"], ["log", "dump"]),
    ],
    ids=" ".join,
)
def test_h_is_help_everywhere(command: list[str]) -> None:
    short, long = millstream(*command, "-h"), millstream(*command, "--help")
    assert (short.code, long.code) == (0, 0)
    assert short.out == long.out
    assert "Usage: " in short.out


def test_help_is_silent_about_what_is_for_our_own_use() -> None:
    told = millstream("broker", "--help").out
    assert "--zookeeper" in told
    assert "--lifeline" not in told
    assert "--metrics-port" not in told


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
        "print(*[name for name in ('asyncio', 'rich.table', 'millstream.kernels.batches', 'lz4',"
        " 'millstream.storage.scan.partition_scan') if name in sys.modules])"
    )
    done = run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("way", ["direct", "by the library"])
def test_a_violated_invariant_ends_the_process(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    violation = InvariantViolated("I-99 test")

    def violate(*_: object) -> int:
        raise violation

    ended: list[BaseException] = []
    monkeypatch.setattr(fatal, "end_process", ended.append)
    monkeypatch.setattr(brokers_up, "run", violate)
    monkeypatch.setattr(app, "app", violate)
    monkeypatch.setattr(sys, "argv", ["millstream", "up" if way == "direct" else "--help"])
    main.run()
    assert ended == [violation]


def test_ctrl_c_before_anything_happens_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(brokers_up, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["millstream", "up"])
    with pytest.raises(SystemExit) as ended:
        main.run()
    assert ended.value.code == 130


@pytest.mark.parametrize("command", [["--version"], ["up", "--brokers", "0"], ["fly"]])
def test_the_package_run_as_a_module_is_the_command(command: list[str]) -> None:
    """`python -m millstream`, for those who have it in an environment that is not on the path."""
    environment = os.environ | {"COLUMNS": "200"}
    package, module = (
        run(
            [sys.executable, "-m", name, *command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        for name in ("millstream", "millstream.cli.main")
    )
    told = package.stderr.replace("python -m millstream ", "millstream ")
    assert (package.returncode, package.stdout) == (module.returncode, module.stdout)
    assert told == module.stderr.replace("python -m millstream.cli.main ", "millstream ")
