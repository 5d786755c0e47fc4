"""Jars from Maven Central with everything they depend on, once per set of coordinates."""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from millstream.testing.peers.runtimes import file_lock, find_runtime

COPY_GOAL: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
FETCH_TIMEOUT_S: Final = 900
STAMP: Final = ".complete"


class Artifact(NamedTuple):
    """What Maven calls coordinates."""

    group: str
    name: str
    version: str


class FetchFailedError(RuntimeError):
    """Maven could not fetch the jars; the message has the end of its output."""


def fetch_jars(
    directory: Path, artifacts: Sequence[Artifact], *, without_repositories: Sequence[str] = ()
) -> Path:
    """`directory`, filled with the jars of `artifacts` and of all they need.

    Where two want one jar in different versions, the artifact that comes first decides. An
    artifact may name further repositories; those in `without_repositories` are not used.
    Safe to call from several processes at once: one downloads, the others wait. A download that
    was cut short leaves no stamp and is done again.
    """
    pom = _project(artifacts, without_repositories)
    stamp = directory / STAMP
    wanted = hashlib.sha256(pom.encode()).hexdigest()
    with file_lock(directory.with_name(directory.name + ".lock")):
        if not (stamp.exists() and stamp.read_text() == wanted):
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            (directory / "pom.xml").write_text(pom)
            _copy_dependencies(directory)
            stamp.write_text(wanted)
    return directory


def _copy_dependencies(directory: Path) -> None:
    command = [str(find_runtime("mvn")), "--quiet", "--batch-mode", "--no-transfer-progress"]
    # Maven takes a relative path to be below the directory of its project.
    target = directory.absolute()
    command += ["-f", str(target / "pom.xml"), COPY_GOAL, f"-DoutputDirectory={target}"]
    done = subprocess.run(  # noqa: S603 - our own arguments
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise FetchFailedError(f"Maven ended with {done.returncode}:\n{done.stdout[-4000:]}")


def _project(artifacts: Sequence[Artifact], without_repositories: Sequence[str]) -> str:
    dependencies = "\n".join(
        f"    <dependency><groupId>{artifact.group}</groupId>"
        f"<artifactId>{artifact.name}</artifactId><version>{artifact.version}</version>"
        "</dependency>"
        for artifact in artifacts
    )
    # A repository of the same id here replaces the artifact's, and this one is empty.
    never = "<enabled>false</enabled>"
    repositories = "".join(
        f"\n    <repository><id>{name}</id><url>file:///dev/null</url>"
        f"<releases>{never}</releases><snapshots>{never}</snapshots></repository>"
        for name in without_repositories
    )
    if repositories:
        repositories = f"\n  <repositories>{repositories}\n  </repositories>"
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>millstream.peers</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>{repositories}
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
