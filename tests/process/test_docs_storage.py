"""The programs in the storage reference run as printed and do what it says they do."""

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "storage.md"


def run(code: str, directory: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def program_with(part: str) -> str:
    programs: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (found,) = (code for code in programs if part in code)
    return found


def test_the_program_with_a_manager_runs_twice(tmp_path: Path) -> None:
    for first in (0, 3):
        told, *records = run(program_with("LogManager("), tmp_path)
        assert told == "failure: None"
        assert [line.split()[0] for line in records] == [str(first + at) for at in range(3)]
        assert records[-1].endswith("marker")


def test_the_program_with_one_log_recovers_and_finds_all_six_records(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    lines = run(program_with("half a batch"), tmp_path)
    assert any("recovered_segments=1" in line and "cut_bytes=12" in line for line in lines)
    records = [line for line in lines if re.match(r"\d+ b'user", line)]
    assert [line.split()[0] for line in records] == ["0", "1", "2", "3", "4", "5"]
