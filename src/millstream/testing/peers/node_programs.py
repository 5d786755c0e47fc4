"""Node programs with the packages of their lock file, installed outside the source tree."""

import shutil
from pathlib import Path
from typing import Final

from millstream.testing.peers.builds import built_once, run_build
from millstream.testing.peers.runtimes import find_runtime

NODE_FILES: Final = ("*.js", "package.json", "package-lock.json")


def node_program(cache: Path, name: str, source: Path) -> Path:
    """The directory with a copy of the program and its packages, exactly those of the lock."""
    files = [path for pattern in NODE_FILES for path in source.glob(pattern)]

    def install_into(directory: Path) -> None:
        for path in files:
            shutil.copy(path, directory / path.name)
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        run_build([str(find_runtime("npm")), "ci", *options], directory=directory)

    return built_once(cache, name, files, install_into)
