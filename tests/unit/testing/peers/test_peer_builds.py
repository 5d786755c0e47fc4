"""Foreign programs are built once per content of their sources, and never half."""

from pathlib import Path

import pytest

from millstream.testing.peers.builds import BuildFailedError, built_once, run_build
from millstream.testing.peers.go_programs import go_compiler
from millstream.testing.peers.maven import Artifact, fetch_jars


def test_same_sources_are_built_once_and_changed_ones_again(tmp_path: Path) -> None:
    source = tmp_path / "program.txt"
    source.write_text("one")
    builds: list[Path] = []

    def build(directory: Path) -> None:
        builds.append(directory)
        (directory / "made").write_text(source.read_text())

    first = built_once(tmp_path / "cache", "program", [source], build)
    assert built_once(tmp_path / "cache", "program", [source], build) == first
    assert len(builds) == 1
    source.write_text("two")
    second = built_once(tmp_path / "cache", "program", [source], build)
    assert (second / "made").read_text() == "two"
    assert not first.exists()


def test_failed_build_is_done_again(tmp_path: Path) -> None:
    source = tmp_path / "program.txt"
    source.write_text("one")

    def fail(directory: Path) -> None:
        (directory / "half").touch()
        run_build(["sh", "-c", "echo what went wrong; exit 3"], directory=directory)

    with pytest.raises(BuildFailedError, match=r"(?s)ended with 3.*what went wrong"):
        built_once(tmp_path / "cache", "program", [source], fail)
    done = built_once(tmp_path / "cache", "program", [source], lambda path: None)
    assert list(done.iterdir()) == []


def test_go_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "go.mod").write_text("module m\n\ngo 1.26.0\n")
    (tmp_path / "go").write_text("#!/bin/sh\necho go version go1.26.1 linux/amd64\n")
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert go_compiler(tmp_path) == tmp_path / "go"


def test_older_go_fetches_the_one_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = tmp_path / "newer"
    (newer / "bin").mkdir(parents=True)
    (newer / "pkg" / "tool" / "linux").mkdir(parents=True)
    for name in ("bin/go", "pkg/tool/linux/compile"):
        (newer / name).touch(mode=0o444)
    (tmp_path / "go.mod").write_text("module m\n\ngo 1.26.0\n")
    (tmp_path / "go").write_text(
        '#!/bin/sh\ncase "$1" in version) echo go version go1.19.8 linux/amd64 ;;'
        f' *) echo "$4" >{tmp_path}/asked; echo \'{{"Dir": "{newer}"}}\' ;; esac\n'
    )
    (tmp_path / "go").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert go_compiler(tmp_path) == newer / "bin" / "go"
    assert "toolchain@v0.0.1-go1.26.0.linux-" in (tmp_path / "asked").read_text()
    assert (newer / "pkg" / "tool" / "linux" / "compile").stat().st_mode & 0o111


def test_unwanted_repository_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mvn").write_text("#!/bin/sh\n")
    (tmp_path / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    artifact = Artifact("g", "a", "1")
    plain = fetch_jars(tmp_path / "plain", [artifact]) / "pom.xml"
    assert "repositor" not in plain.read_text()
    without = fetch_jars(tmp_path / "without", [artifact], without_repositories=["slow"])
    text = (without / "pom.xml").read_text()
    assert text.count("<id>slow</id>") == 1
    assert text.count("<enabled>false</enabled>") == 2
