"""The program in the storage reference runs as printed, also on what it left the first time."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "storage.md"


def test_the_program_runs_twice(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for first in (0, 3):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told, *records = done.stdout.splitlines()
        assert told == "failure: None"
        assert [line.split()[0] for line in records] == [str(first + at) for at in range(3)]
        assert records[-1].endswith("marker")
