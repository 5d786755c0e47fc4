"""`.githooks/pre-commit` refuses what ruff would refuse in `make check`."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from kits.paths import ROOT

RUFF = ROOT / ".venv" / "bin" / "ruff"
GOOD = '"""A module."""\n\nX = 1\n'
BADLY_FORMATTED = '"""A module."""\n\nX  =  1\n'
UNUSED_IMPORT = '"""A module."""\n\nimport os\n'

pytestmark = pytest.mark.skipif(not RUFF.exists(), reason=f"{RUFF} is not there")


class Repository:
    """One with our hook and our rules."""

    def __init__(self, root: Path) -> None:
        self.root = root
        shutil.copytree(ROOT / ".githooks", root / ".githooks")
        shutil.copy(ROOT / "pyproject.toml", root)
        ruff = root / ".venv" / "bin" / "ruff"
        ruff.parent.mkdir(parents=True)
        ruff.symlink_to(RUFF)
        self.git("init", "--quiet")
        self.git("config", "core.hooksPath", ".githooks")

    def git(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        # Ours may run in a hook itself, whose variables name another repository.
        environment = {name: it for name, it in os.environ.items() if not name.startswith("GIT_")}
        command = ["git", "-C", str(self.root), *identity, *arguments]
        return subprocess.run(command, check=False, env=environment, capture_output=True, text=True)

    def write(self, text: str, name: str = "src/a b.py") -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> "subprocess.CompletedProcess[str]":
        return self.git("commit", "--quiet", "--message", "x")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_what_keeps_the_rules_is_committed(repository: Repository) -> None:
    repository.write(GOOD)
    repository.write("X  =  1", "notes.txt")
    repository.git("add", "src", "notes.txt")
    assert repository.commit().returncode == 0


@pytest.mark.parametrize(
    ("text", "said"), [(BADLY_FORMATTED, "ruff format src/a b.py"), (UNUSED_IMPORT, "F401")]
)
def test_what_breaks_a_rule_is_refused_and_named(
    repository: Repository, text: str, said: str
) -> None:
    repository.write(GOOD, "src/good.py")
    repository.write(text)
    repository.git("add", "src")
    ended = repository.commit()
    assert ended.returncode != 0
    assert said in ended.stderr
    assert "good.py" not in ended.stderr


def test_what_is_committed_counts_not_what_lies_there(repository: Repository) -> None:
    repository.write(BADLY_FORMATTED)
    repository.git("add", "src")
    repository.write(GOOD)
    assert repository.commit().returncode != 0
    repository.git("add", "src")
    repository.write(BADLY_FORMATTED)
    assert repository.commit().returncode == 0


def test_a_file_can_be_removed(repository: Repository) -> None:
    repository.write(GOOD)
    repository.git("add", "src")
    assert repository.commit().returncode == 0
    repository.git("rm", "--quiet", "src/a b.py")
    assert repository.commit().returncode == 0


def test_without_ruff_it_says_how_to_get_it(repository: Repository) -> None:
    (repository.root / ".venv" / "bin" / "ruff").unlink()
    repository.write(GOOD)
    repository.git("add", "src")
    ended = repository.commit()
    assert ended.returncode != 0
    assert "make hooks" in ended.stderr
