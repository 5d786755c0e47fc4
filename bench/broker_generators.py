"""The load generators in C: built with gcc, run as processes of their own, answering in JSON.

A Python or JVM generator would measure itself.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from millstream.testing.peers.runtimes import MissingRuntimeError, install_packages

SOURCES = Path(__file__).parent / "generators"
BUILT = Path("build/bench")
LIBRARY = "librdkafka"
PACKAGES = ("gcc", "libc6-dev", "librdkafka-dev", "pkg-config")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread")
RUN_TIMEOUT_S = 600


def missing() -> str | None:
    """Why the generators cannot be built; None when they can."""
    for program in ("gcc", "pkg-config"):
        if shutil.which(program) is None:
            return program
    found = subprocess.run(["pkg-config", "--exists", "rdkafka"], check=False)
    return LIBRARY if found.returncode else None


def build(directory: Path = BUILT) -> Path:
    """Build the generators that are older than their source; as root, install what is missing.

    Raises MissingRuntimeError.
    """
    if missing() is not None:
        install_packages(PACKAGES, lambda: missing() is None)
    lacking = missing()
    if lacking is not None:
        needed = " ".join(PACKAGES)
        raise MissingRuntimeError(f"{lacking} is not installed (Debian: apt-get install {needed})")
    directory.mkdir(parents=True, exist_ok=True)
    for source in sorted(SOURCES.glob("*.c")):
        _compile(source, directory / source.stem)
    return directory


def run(
    name: str, *arguments: object, stdin: bytes = b"", directory: Path = BUILT
) -> dict[str, Any]:
    """Run a generator once and return the figures it prints."""
    command = [str(directory / name), *map(str, arguments)]
    done = subprocess.run(
        command, input=stdin, capture_output=True, check=False, timeout=RUN_TIMEOUT_S
    )
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr.decode()[-500:]}")
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _compile(source: Path, target: Path) -> None:
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "rdkafka"], check=True, capture_output=True, text=True
    )
    partial = target.with_suffix(f".{os.getpid()}")
    command = ["gcc", *FLAGS, "-o", str(partial), str(source), *flags.stdout.split(), "-lm"]
    subprocess.run(command, check=True)
    partial.replace(target)


def main() -> None:
    try:
        print(f"generators: {build()}")
    except MissingRuntimeError as error:
        raise SystemExit(f"generators: {error}") from None


if __name__ == "__main__":
    main()
