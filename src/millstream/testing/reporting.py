"""The report of a failed random run: the error, seed, commit, and how to replay it."""

import subprocess
import traceback
from pathlib import Path


def replay_lines(error: BaseException, *, seed: int, command: str) -> str:
    """The traceback and the one command that replays."""
    trace = "".join(traceback.format_exception(error))
    return f"{trace}\nseed   {seed}\ncommit {commit()}\nreplay {command}"


def commit() -> str:
    """The commit of this tree where git knows one; with a mark when files were changed."""
    here = Path(__file__).parent
    try:
        found = _git(here, "rev-parse", "--short=12", "HEAD")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return f"{found}{' and local changes' if changed else ''}"


def _git(directory: Path, *arguments: str) -> str:
    command = ["git", "-C", str(directory), *arguments]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
