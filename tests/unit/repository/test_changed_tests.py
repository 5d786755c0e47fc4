"""What `make changed` runs: the tests that lie where a changed file's tests lie."""

import os
import subprocess
from pathlib import Path

import pytest

from kits.paths import ROOT
from kits.repository.changed_tests import NO_TESTS, RUN_ALL, RUN_INTEROP, select_tests

TESTS = {
    "tests/conftest.py": "",
    "tests/interop/test_wire_agreement.py": "from kits.broker.data_plane import a",
    "tests/kits/broker/data_plane.py": "",
    "tests/kits/broker/config_docs.py": 'PAGE = ROOT / "docs" / "configuration.md"',
    "tests/kits/broker/fetch_kit.py": "from kits.broker import data_plane",
    "tests/kits/spark/rows.py": "",
    "tests/process/test_docs_broker.py": 'PAGE = "broker.md"',
    "tests/process/test_readme.py": 'README = ROOT / "README.md"',
    "tests/property/test_core_parity.py": "",
    "tests/property/test_crash_states.py": "",
    "tests/property/test_kernels_parity.py": "",
    "tests/spark/conftest.py": "import kits.spark.rows",
    "tests/spark/deployment_program.py": "",
    "tests/spark/test_deployments.py": "PROGRAM = 'deployment_program.py'",
    "tests/spark/test_demo.py": "",
    "tests/unit/bench/test_bench_tables.py": "",
    "tests/unit/broker/configs/test_config_docs.py": "import kits.broker.config_docs",
    "tests/unit/broker/fetch/test_fetch.py": "from kits.broker.fetch_kit import b",
    "tests/unit/broker/handlers/test_handler_fetch.py": "from kits.broker.data_plane import a",
    "tests/unit/broker/test_handlers_standalone.py": '"""ElectLeaders on a standalone broker."""',
    "tests/unit/kernels/test_core.py": "data_plane = 'only the word'",
    "tests/unit/storage/log/test_log_append.py": "",
    "tests/unit/storage/log/test_log_read.py": "",
    "tests/unit/storage/test_storage_manager.py": "",
}
PARITY = ["tests/property/test_core_parity.py", "tests/property/test_kernels_parity.py"]


def selected(*changed: str) -> list[str]:
    return list(select_tests(changed, TESTS).tests)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("src/millstream/storage/log/append.py", ["tests/unit/storage/log"]),
        ("src/millstream/storage/log/deep/er/x.py", ["tests/unit/storage/log"]),
        ("src/millstream/storage/moves/x.py", ["tests/unit/storage"]),
        ("src/millstream/storage/x.py", ["tests/unit/storage"]),
        ("src/millstream/broker/handlers/fetch.py", ["tests/unit/broker/handlers"]),
        (
            "src/millstream/broker/handlers/elect_leaders.py",
            ["tests/unit/broker/handlers", "tests/unit/broker/test_handlers_standalone.py"],
        ),
        ("src/millstream/kernels/_compiled/core.pxd", [*PARITY, "tests/unit/kernels"]),
        ("bench/report/tables.py", ["tests/unit/bench"]),
    ],
)
def test_sources_lead_to_the_nearest_folder_of_their_mirror(changed: str, tests: list[str]) -> None:
    assert selected(changed) == tests


@pytest.mark.parametrize(
    "changed",
    [
        "src/millstream/__init__.py",
        "src/millstream/registry/deep/x.py",
        "examples/shop/x.py",
        "docs/adr/0001-a.md",
        "LICENSE",
        "tests/unit/storage/test_deleted.py",
        "tests/kits/broker/used_by_nobody.py",
    ],
)
def test_what_leads_to_nothing_is_said_and_never_runs_everything(changed: str) -> None:
    assert select_tests([changed], TESTS) == ((), (f"{changed}: {NO_TESTS}",))


@pytest.mark.parametrize("changed", ["pyproject.toml", "tests/conftest.py"])
def test_what_concerns_every_test_is_said(changed: str) -> None:
    assert select_tests([changed], TESTS) == ((), (f"{changed}: {RUN_ALL}",))


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("tests/unit/storage/log/test_log_read.py", ["tests/unit/storage/log/test_log_read.py"]),
        ("tests/spark/conftest.py", ["tests/spark"]),
        ("tests/spark/deployment_program.py", ["tests/spark/test_deployments.py"]),
    ],
)
def test_a_changed_test_runs_and_what_lies_beside_tests_runs_theirs(
    changed: str, tests: list[str]
) -> None:
    assert selected(changed) == tests


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("tests/kits/broker/fetch_kit.py", ["tests/unit/broker/fetch/test_fetch.py"]),
        (
            "tests/kits/broker/data_plane.py",
            [
                "tests/unit/broker/fetch/test_fetch.py",  # through the other kit
                "tests/unit/broker/handlers/test_handler_fetch.py",
            ],
        ),
        ("tests/kits/spark/rows.py", ["tests/spark"]),  # through its conftest.py
    ],
)
def test_a_kit_leads_to_those_that_import_it(changed: str, tests: list[str]) -> None:
    assert selected(changed) == tests


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("docs/broker.md", ["tests/process/test_docs_broker.py"]),
        ("docs/configuration.md", ["tests/unit/broker/configs/test_config_docs.py"]),
        ("README.md", ["tests/process/test_readme.py"]),
    ],
)
def test_a_page_leads_to_the_tests_that_read_it(changed: str, tests: list[str]) -> None:
    assert selected(changed) == tests


def test_interop_tests_are_named_and_left_to_make_interop() -> None:
    changed = ["tests/interop/java/Dump.java", "tests/interop/test_wire_agreement.py"]
    assert select_tests(changed, TESTS) == ((), tuple(f"{one}: {RUN_INTEROP}" for one in changed))
    kit = "tests/kits/broker/data_plane.py"
    assert select_tests([kit], TESTS).notes == (f"{kit}: {RUN_INTEROP}",)


def test_nothing_is_named_twice() -> None:
    changed = [
        "src/millstream/storage/log/append.py",
        "src/millstream/storage/log/read.py",
        "src/millstream/storage/moves/x.py",
        "tests/unit/storage/log/test_log_read.py",
    ]
    assert selected(*changed) == ["tests/unit/storage"]


def test_a_repository_is_asked_for_deleted_renamed_and_new_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By git itself, in a repository of its own."""
    from kits.repository import changed

    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # set in a hook, for another repository

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    git("init", "--quiet")
    for name in ("changed", "deleted", "old-name", "same"):
        (tmp_path / name).write_text(f"{name}\n" * 9)
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    (tmp_path / "changed").write_text("otherwise")
    (tmp_path / "deleted").unlink()
    git("mv", "old-name", "new name")
    (tmp_path / "new").touch()
    monkeypatch.setattr(changed, "ROOT", tmp_path)
    expected = {"changed", "deleted", "old-name", "new name", "new"}
    assert changed.changed_files("HEAD") == expected
    git("add", ".")
    git("commit", "--quiet", "--message", "second")
    assert changed.changed_files("HEAD") == set()
    assert changed.changed_files("HEAD~1") == expected
    git("checkout", "--quiet", "-b", "other", "HEAD~1")
    (tmp_path / "of another branch").touch()
    git("add", ".")
    git("commit", "--quiet", "--message", "third")
    git("checkout", "--quiet", "-")
    assert changed.changed_files("other") == expected


def test_it_says_when_nothing_is_to_be_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kits.repository import changed

    monkeypatch.setattr(changed, "changed_files", lambda base: {"LICENSE"})
    changed.main()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "LICENSE: no tests of its own" in printed.err
    assert "no tests to run" in printed.err


def test_the_real_tree_has_tests_for_every_module() -> None:
    """The mirror holds: no module of the package leads to nothing."""
    files = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in (ROOT / "tests").rglob("*.py")
    }
    modules = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "src" / "millstream").glob("*/**/*.py")
        if path.name != "__init__.py"
    ]
    without = select_tests(modules, files).notes
    assert [note for note in without if NO_TESTS in note] == []
