"""The command line of the demo: `python -m examples.shop --help`."""

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from rich.console import Console

from examples.shop.events import Day
from examples.shop.processes import DemoFailed
from examples.shop.run import Plan, run

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main() -> int:
    """The exit code: 0 only if everything matched."""
    plan = plan_of(sys.argv[1:])
    console = Console()
    signal.signal(signal.SIGTERM, _interrupt)
    # A home for its font cache: nothing is left outside of the directory.
    os.environ.setdefault("MPLCONFIGDIR", str(plan.directory.absolute().parent / "matplotlib"))
    try:
        return 0 if run(plan, console) else EXIT_FAILED
    except DemoFailed as failed:
        console.print(f"the demo failed: {failed}", markup=False, soft_wrap=True)
        return EXIT_FAILED
    except KeyboardInterrupt:
        console.print("stopped")
        return EXIT_INTERRUPTED


def plan_of(arguments: list[str]) -> Plan:
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="records to write")
    parser.add_argument("--seconds", type=float, default=75, help="how long the shop's day takes")
    parser.add_argument("--seed", type=int, default=1, help="another one makes another day")
    parser.add_argument(
        "--directory", type=Path, default=Path("build/demo"), help="is emptied, then filled"
    )
    given = parser.parse_args(arguments)
    if given.events < 1:
        parser.error("--events must be at least 1")
    day = Day(given.seed, given.events)
    return Plan(day=day, seconds=given.seconds, directory=given.directory)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
