"""Foreign runtimes: found, missed with a reason, and jars fetched once and whole."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from millstream.testing.peers import runtimes
from millstream.testing.peers.maven import Artifact, FetchFailedError, fetch_jars
from millstream.testing.peers.runtimes import MissingRuntimeError, find_runtime, require_runtime

ARTIFACTS = [Artifact("org.example", "thing", "1.0")]


def install_program(directory: Path, name: str, script: str) -> None:
    program = directory / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which programs are found; nothing can be installed."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.setattr(runtimes, "_may_install", lambda: False)
    return directory


def test_missing_runtime_says_what_to_install(programs: Path) -> None:
    with pytest.raises(MissingRuntimeError, match=r"java .* apt-get install openjdk-17"):
        find_runtime("java")
    install_program(programs, "java", "exit 0")
    assert find_runtime("java") == programs / "java"


def test_missing_runtime_skips_but_fails_in_ci(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="java is not installed"):
        require_runtime("java")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="java is not installed"):
        require_runtime("java")


def test_missing_runtime_is_installed_where_we_may(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = programs / "asked"
    install_program(
        programs,
        "apt-get",
        f'echo "$@" >>{log}\nprintf "#!/bin/sh" >{programs}/java\n/bin/chmod +x {programs}/java',
    )
    monkeypatch.setattr(runtimes, "_may_install", lambda: True)
    assert find_runtime("java") == programs / "java"
    assert "install -y --no-install-recommends openjdk-17-jre-headless" in log.read_text()


def test_jars_are_fetched_once_by_many(programs: Path, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    install_program(programs, "mvn", f"echo call >>{calls}\nexit 0")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: fetch_jars(tmp_path / "jars", ARTIFACTS), range(8)))
    assert found == [tmp_path / "jars"] * 8
    assert calls.read_text() == "call\n"
    assert "<artifactId>thing</artifactId>" in (tmp_path / "jars" / "pom.xml").read_text()
    fetch_jars(tmp_path / "jars", [*ARTIFACTS, Artifact("org.example", "more", "2.0")])
    assert calls.read_text() == "call\ncall\n"


def test_failed_fetch_is_told_and_done_again(programs: Path, tmp_path: Path) -> None:
    install_program(programs, "mvn", "echo no network today\nexit 1")
    with pytest.raises(FetchFailedError, match="no network today"):
        fetch_jars(tmp_path / "jars", ARTIFACTS)
    install_program(programs, "mvn", "exit 0")
    assert fetch_jars(tmp_path / "jars", ARTIFACTS) == tmp_path / "jars"


def test_jars_come_to_a_relative_directory_too(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven takes relative paths to begin where its project is, not where we are."""
    asked = tmp_path / "asked"
    install_program(programs, "mvn", f'echo "$@" >{asked}')
    monkeypatch.chdir(tmp_path)
    fetch_jars(Path("jars"), ARTIFACTS)
    assert f"-DoutputDirectory={tmp_path}/jars" in asked.read_text()
