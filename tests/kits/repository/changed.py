"""`PYTHONPATH=tests python -m kits.repository.changed [BASE]`: the tests of what is changed.

What differs from the merge base with BASE (without BASE: from the last commit) and untracked files.
Prints folders and files, one a line, and on stderr what has tests in other targets, or none.
"""

import subprocess
import sys

from kits.paths import ROOT
from kits.repository.changed_tests import select_tests


def changed_files(base: str) -> set[str]:
    """Paths from the root, those of deleted files and both names of renamed ones included."""
    # Not what others have committed to BASE since then.
    left_at = _git("merge-base", base, "HEAD").strip()
    differing = _git("diff", "--name-only", "--no-renames", "-z", left_at, "--")
    untracked = _git("ls-files", "--others", "--exclude-standard", "-z")
    return {name for name in (differing + untracked).split("\0") if name}


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def main(base: str = "HEAD") -> None:
    """Print the tests of what differs from `base`."""
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    changed = changed_files(base)
    tests, notes = select_tests(changed, files)
    for note in notes:
        print(note, file=sys.stderr)
    if not tests:
        print(f"no tests to run: {len(changed)} files differ from {base}", file=sys.stderr)
    for path in tests:
        print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
