"""The README's tour runs as printed and says what the README says it does."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_tour_recovers_and_finds_all_six_records(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "build").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "recovered_segments=1" in done.stdout
    assert "cut_bytes=12" in done.stdout
    records = [line for line in done.stdout.splitlines() if re.match(r"\d+ b'user", line)]
    assert [line.split()[0] for line in records] == ["0", "1", "2", "3", "4", "5"]
