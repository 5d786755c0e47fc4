"""docs/invariants.md says where the simulation of a cluster checks each promise: it is there."""

import ast
import re

from kits.paths import ROOT

TESTING = ROOT / "src" / "millstream" / "testing"
ROW = re.compile(r"^\| (I-\d\d[^|]*) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
NUMBER = re.compile(r"I-(\d\d)")


def rows() -> list[tuple[set[int], list[str], list[str]]]:
    """Numbers, functions and classes, files."""
    found = []
    for numbers, names, files in ROW.findall((ROOT / "docs" / "invariants.md").read_text()):
        first, *others = map(int, NUMBER.findall(numbers))
        is_range = " to " in numbers
        covered = {*range(first, others[0] + 1), *others} if is_range else {first, *others}
        found.append((covered, re.findall(r"`(\w+)`", names), re.findall(r"`([\w./]+)`", files)))
    return found


def defined(file: str) -> set[str]:
    body = ast.parse((TESTING / file).read_text()).body
    return {one.name for one in body if isinstance(one, ast.FunctionDef | ast.ClassDef)}


def test_every_check_that_is_named_is_where_it_is_said_to_be() -> None:
    assert len(rows()) > 15
    missing = [
        f"{name} in {files}"
        for _, names, files in rows()
        for name in names
        if not any(name in defined(file) for file in files)
    ]
    assert missing == []


def test_every_promise_that_the_simulation_of_a_cluster_can_find_broken_is_listed() -> None:
    listed = {number for numbers, _, _ in rows() for number in numbers}
    for path in sorted([*TESTING.glob("history/*.py"), *TESTING.glob("simulation/cluster/*.py")]):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or ast.unparse(call.func) != "Violation":
                continue
            number = int(ast.literal_eval(call.args[0]).removeprefix("I-"))
            assert number in listed, f"{path.name}:{call.lineno} finds I-{number}"


def test_every_test_file_named_on_a_page_exists() -> None:
    files = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
    pages = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    named = {
        (page.name, name)
        for page in pages
        for name in re.findall(r"\btest_[a-z0-9_]+\.py\b", page.read_text())
    }
    assert named
    assert {(page, name) for page, name in named if name not in files} == set()
