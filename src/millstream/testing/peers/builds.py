"""Programs built once per content of their sources, shared by all processes of a test run.

What comes out lies in the cache under a name with the fingerprint of what went in: a changed
source is a new build, and an old one is never taken for it.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from millstream.testing.peers.runtimes import file_lock

BUILD_TIMEOUT_S: Final = 900
_IS_BUILD: Final = re.compile(r"[0-9a-f]{12}(\.building)?")


class BuildFailedError(RuntimeError):
    """The foreign tool could not build or fetch; the message has the end of its output."""


def built_once(
    cache: Path, name: str, sources: Iterable[Path], build: Callable[[Path], None], salt: str = ""
) -> Path:
    """The directory that `build` filled from `sources`, now or earlier.

    Safe to call from several processes at once: one builds, the others wait. A build that was
    cut short leaves only a directory that the next one removes.
    """
    directory = cache / f"{name}-{fingerprint(sources, salt)}"
    with file_lock(cache / f"{name}.lock"):
        if not directory.exists():
            for old in cache.glob(f"{name}-*"):
                if _IS_BUILD.fullmatch(old.name.removeprefix(f"{name}-")):
                    shutil.rmtree(old)
            building = directory.with_name(directory.name + ".building")
            building.mkdir(parents=True)
            build(building)
            building.rename(directory)
    return directory


def fingerprint(sources: Iterable[Path], salt: str = "") -> str:
    """A hash of names and contents."""
    digest = hashlib.sha256(salt.encode())
    for path in sorted(sources):
        digest.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def run_build(
    command: Sequence[str], *, directory: Path, environment: Mapping[str, str] | None = None
) -> str:
    """Run one foreign tool; BuildFailedError with the end of its output when it fails."""
    done = subprocess.run(  # noqa: S603 - our own arguments
        command,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        output = done.stdout[-4000:]
        raise BuildFailedError(f"{Path(command[0]).name} ended with {done.returncode}:\n{output}")
    return done.stdout
