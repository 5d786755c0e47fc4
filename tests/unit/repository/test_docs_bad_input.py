"""docs/bad-input.md says which test fails without each rule, and which limit it has: they exist."""

import re
from functools import cache

import pytest

from kits.paths import ROOT

PAGE = ROOT / "docs" / "bad-input.md"
FILE = re.compile(r"`(?:[\w/]+/)?(test_\w+\.py)`")
LIMIT = re.compile(r"`([A-Z][A-Z_]+_[A-Z_]+)`")
BY_REFERENCE = "the same"
WITHOUT_RULES = "What you see"
"""The section about what an operator finds: event, client, log line, metric."""


def sections() -> list[str]:
    return PAGE.read_text().split("\n## ")[1:]


def rows() -> list[list[str]]:
    """The cells of every row that is not a table's head: input, what happens, limit, test."""
    rules = [one for one in sections() if not one.startswith(WITHOUT_RULES)]
    lines = [one for part in rules for one in part.splitlines() if one.startswith("| ")]
    split = [re.split(r"\s*\|\s*", one.strip("| ")) for one in lines]
    return [one for one in split if one[-1] != "test"]


@cache
def sources() -> str:
    return "".join(one.read_text() for one in (ROOT / "src" / "millstream").rglob("*.py"))


def test_there_are_rows_and_all_have_four_cells() -> None:
    assert len(rows()) > 40
    assert [one for one in rows() if len(one) != 4] == []


def test_every_section_has_rows() -> None:
    assert [one.splitlines()[0] for one in sections() if one.count("\n| ") < 2] == []


def test_every_rule_has_a_test_that_exists() -> None:
    there = {one.name for one in (ROOT / "tests").rglob("test_*.py")}
    named: list[str] = []
    without = []
    for row in rows():
        found = FILE.findall(row[-1])
        if not found and row[-1] != BY_REFERENCE:
            without.append(row[0])
        named = found or named  # "the same" is that of the row before
        without += [f"{row[0]}: {one}" for one in named if one not in there]
    assert without == []


@pytest.mark.parametrize("name", sorted({one for row in rows() for one in LIMIT.findall(row[2])}))
def test_every_limit_that_is_named_exists(name: str) -> None:
    assert re.search(rf"^{name}: Final = ", sources(), re.MULTILINE)
