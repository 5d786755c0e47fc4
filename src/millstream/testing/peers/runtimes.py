"""Foreign runtimes: found, installed where that is allowed, or reported as missing."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

APT_PACKAGES: Final = {
    "java": "openjdk-17-jre-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "kcat": "kcat",
    "go": "golang-go",
    "node": "nodejs",
    "npm": "npm",
}
INSTALL_TIMEOUT_S: Final = 600


class MissingRuntimeError(RuntimeError):
    """A program that a peer needs is not on the machine; the message says what to install."""


@contextmanager
def file_lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; freed by the process's end, so no stale lock exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_runtime(name: str) -> Path:
    """The program `name`, installed first when it is missing and we are root on a Debian.

    Raises MissingRuntimeError.
    """
    found = shutil.which(name)
    if found is None and name in APT_PACKAGES:
        install_packages((APT_PACKAGES[name],), lambda: shutil.which(name) is not None)
        found = shutil.which(name)
    if found is None:
        package = APT_PACKAGES.get(name, name)
        raise MissingRuntimeError(f"{name} is not installed (Debian: apt-get install {package})")
    return Path(found)


def require_runtime(*names: str) -> None:
    """In a test: skip with the reason when a program is missing; fail with CI=true."""
    with missing_is_skipped():
        for name in names:
            find_runtime(name)


@contextmanager
def missing_is_skipped() -> Iterator[None]:
    """In a test: MissingRuntimeError skips it, with the reason; with CI=true it fails."""
    import pytest

    try:
        yield
    except MissingRuntimeError as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))


def install_packages(packages: Sequence[str], is_there: Callable[[], bool]) -> None:
    """With apt-get, where we are root and there is one; by one process at a time."""
    if not _may_install():
        return
    with file_lock(Path(tempfile.gettempdir()) / "millstream-apt.lock"):
        if not is_there():
            _run_apt_get("update")
            _run_apt_get("install", "-y", "--no-install-recommends", *packages)


def _may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def _run_apt_get(*arguments: str) -> None:
    subprocess.run(  # noqa: S603 - our own arguments
        ["apt-get", "-q", *arguments],  # noqa: S607 - root's own PATH finds apt-get
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=INSTALL_TIMEOUT_S,
        check=False,
    )
