"""`pip install` of the source distribution into a fresh environment, with and without a compiler.

Nothing is downloaded: the environment sees the dependencies and build tools of the one that runs
the tests through a `.pth` file. The compiler is told not to optimise, as only the result counts.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which("cc") or shutil.which("gcc")
PLAIN = "running in plain Python"

USE_THE_LOG = """
import sys
from millstream.model.ids import LeaderEpoch
from millstream.runtime.os_disk import OsDisk
from millstream.testing.log_kit import open_log, read_all
from millstream.testing.record_batches import build_batch
from millstream.testing.sim.clock import ManualClock

opened = open_log(OsDisk(), ManualClock(), root=sys.argv[1])
opened.log.append_as_leader(build_batch([(b"key", b"value")]), leader_epoch=LeaderEpoch(0))
assert [record.value for record in read_all(opened.log)] == [b"value"]
opened.close()
"""


class Environment(NamedTuple):
    """A virtual environment with Millstream in it."""

    home: Path

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("MILLSTREAM", "PYTHON"))
        }
        command = [str(self.home / "bin" / program), *map(str, arguments)]
        return subprocess.run(
            command, env=environment, cwd=self.home, capture_output=True, text=True, check=True
        )


@pytest.fixture(scope="module")
def source_distribution(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpacked, as it would come from an index."""
    tree = tmp_path_factory.mktemp("tree")
    ignore = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", tree / "src", ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, tree)
    if (made := ROOT / "build" / "cython").exists():
        # Of the last build; Cython makes those again whose source is newer.
        shutil.copytree(made, tree / "build" / "cython")
    build = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tree, check=True, capture_output=True)
    (archive,) = (tree / "dist").glob("millstream-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tree / "unpacked", filter="data")
    (unpacked,) = (tree / "unpacked").iterdir()
    # The C files that were just made: newer than their sources, so no install makes them again.
    shutil.copytree(tree / "build", unpacked / "build")
    return unpacked


def install(source: Path, home: Path, *, compiler: str) -> Environment:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    tree = home / "source"
    shutil.copytree(source, tree)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(home)]
    options = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", str(tree)]
    environment = {name: value for name, value in os.environ.items() if "MILLSTREAM" not in name}
    environment["CC"] = compiler
    done = subprocess.run(
        [*pip, *options], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Environment(home)


def check_that_it_works(environment: Environment, tmp_path: Path) -> None:
    environment.run("python", "-c", USE_THE_LOG, tmp_path / "data")
    done = environment.run("millstream", "log", "verify", tmp_path / "data")
    assert "1 partition checked, no problems" in done.stdout
    place = environment.run("python", "-c", "import millstream; print(millstream.__file__)").stdout
    assert place.startswith(str(environment.home))


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None and os.environ.get("CI") != "true", reason="no C compiler")
def test_with_a_compiler_the_kernels_are_compiled(
    source_distribution: Path, tmp_path: Path
) -> None:
    quick = tmp_path / "cc"
    quick.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n')
    quick.chmod(0o755)
    environment = install(source_distribution, tmp_path / "venv", compiler=str(quick))
    done = environment.run("millstream", "version")
    assert "kernels    compiled\n" in done.stdout
    assert done.stderr == ""
    check_that_it_works(environment, tmp_path)


@pytest.mark.slow
def test_without_a_compiler_it_runs_in_plain_python_and_says_so_once(
    source_distribution: Path, tmp_path: Path
) -> None:
    environment = install(source_distribution, tmp_path / "venv", compiler="/bin/false")
    done = environment.run("millstream", "version")
    assert "kernels    plain Python\n" in done.stdout
    assert done.stderr.count("\n") == done.stderr.count(PLAIN) == 1
    check_that_it_works(environment, tmp_path)


def test_a_required_kernel_that_cannot_be_built_is_an_error(tmp_path: Path) -> None:
    """MILLSTREAM_REQUIRE_KERNELS=1, as CI sets it, must not fall back in silence."""
    module = tmp_path / "src" / "millstream" / "kernels" / "_compiled" / "tiny.py"
    module.parent.mkdir(parents=True)
    module.write_text("import cython\nx: cython.int = 1\n")
    shutil.copy2(ROOT / "setup.py", tmp_path)
    environment = os.environ | {"CC": "/bin/false"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    for required, code in [("0", 0), ("1", 1)]:
        environment["MILLSTREAM_REQUIRE_KERNELS"] = required
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, check=False
        )
        assert done.returncode == code, done.stderr
