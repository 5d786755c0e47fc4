"""Retired words stay retired: in names, in comments and messages, and in the documents."""

import pytest

from kits.paths import ROOT
from kits.repository.retired_words import in_code, in_page

SRC = ROOT / "src" / "millstream"
CODE_SUFFIXES = (".py", ".pyi", ".pyx", ".pxd")


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("told = 1\n", ["told"]),
        ("class ToldNodes:\n    LOOK_S = 1\n", ["ToldNodes", "LOOK_S"]),
        ('x = f"{a}"  # for ever\n', ["for ever"]),
        ('"""Waits for\n    ever."""\n', ["for\n    ever"]),
        ("lookup = stolen_home_made = 1\n", ["stolen_home_made"]),
        ("log.info('the records are read anew')\n", ["anew"]),
        (
            "cdef int _is_settled(self) nogil:\n    return self.told_bytes\n",
            ["_is_settled", "told_bytes"],
        ),
    ],
)
def test_retired_words_are_found_in_names_comments_and_strings(code: str, found: list[str]) -> None:
    assert [finding.text for finding in in_code("m.py", code)] == found


def test_retired_phrases_are_found_on_pages_with_their_line() -> None:
    page = "# Title\n\nIt waits for\never, and whoever\nreads this knows.\n"
    found = sorted((one.line, one.text) for one in in_page("p.md", page))
    assert found == [(3, "for\never"), (4, "whoever")]


def test_no_module_has_a_retired_word() -> None:
    paths = sorted(path for path in SRC.rglob("*") if path.suffix in CODE_SUFFIXES)
    findings = [
        str(finding)
        for path in paths
        if "generated" not in path.parts
        for finding in in_code(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert findings == []


def test_no_page_has_a_retired_phrase() -> None:
    pages = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
    findings = [
        str(finding)
        for page in pages
        for finding in in_page(str(page.relative_to(ROOT)), page.read_text())
    ]
    assert findings == []
