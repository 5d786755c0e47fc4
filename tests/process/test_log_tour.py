"""The demo checks itself; here it must find everything right, and see when it is not."""

import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[2] / "examples" / "log_tour.py"


@pytest.mark.slow
def test_everything_matches() -> None:
    done = subprocess.run([sys.executable, TOUR], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything matched" in done.stdout


@pytest.mark.slow
def test_a_lost_record_is_seen(tmp_path: Path) -> None:
    """The same tour with a writer that acknowledges more than it wrote."""
    text = TOUR.read_text()
    told = "tell(events.log_end, profiles.log_end)"
    assert told in text
    lying = tmp_path / "log_tour.py"
    lying.write_text(text.replace(told, "tell(events.log_end + 40 * BATCH, profiles.log_end)"))
    done = subprocess.run([sys.executable, lying], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "WRONG: log ends at" in done.stderr
