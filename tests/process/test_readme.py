"""The README's tour runs as printed and says what the README says it does."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def code_and_what_it_prints() -> tuple[str, str]:
    """The one program of the README, and the block below it."""
    blocks = re.compile(r"```python\n(.*?)```\n.*?```\n(.*?)```", re.DOTALL)
    ((code, printed),) = blocks.findall(README.read_text())
    return code, printed


def test_the_tour_prints_what_the_readme_says(tmp_path: Path) -> None:
    code, printed = code_and_what_it_prints()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    assert done.stderr == ""
    assert not list(tmp_path.iterdir()), "it left something behind"
