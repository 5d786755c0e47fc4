"""CONTRIBUTING.md names tests that are there, and every handler of the broker has some."""

import re
from pathlib import Path

import pytest

from kits.paths import ROOT
from kits.repository.changed_tests import imported_modules
from kits.repository.handler_heads import api_name, head_names

TESTS_NAMED = re.compile(r"\btests/[\w/*.-]*[\w*]")
HANDLERS = ROOT / "src" / "millstream" / "broker" / "handlers"
HANDLER_TESTS = ROOT / "tests" / "unit" / "broker"


def test_tests_that_are_named_exist() -> None:
    named = set(TESTS_NAMED.findall((ROOT / "CONTRIBUTING.md").read_text()))
    assert len(named) > 30
    kept_for_a_name = {name for name in named if "NAME" in name}
    assert [name for name in sorted(named - kept_for_a_name) if not any(ROOT.glob(name))] == []


@pytest.mark.parametrize(
    ("head", "is_named"),
    [
        ('"""JoinGroup, and SyncGroup."""', True),
        ('"""What happens\\n\\nwith `JoinGroup`."""', True),
        ('"""JoinGroupRequest."""', False),
        ('# JoinGroup\\n"""Groups."""', False),
        ('"""Groups."""\\nJoinGroup = 1', False),
    ],
)
def test_a_head_names_an_api_by_its_whole_name(head: str, is_named: bool) -> None:
    assert head_names(head.replace("\\n", "\n"), handler="join_group") is is_named


def files_of(handler: str) -> list[Path]:
    """In the file that has the handler's name, or where a head says so."""
    own = HANDLER_TESTS / "handlers" / f"test_handler_{handler}.py"
    return [
        path
        for path in sorted(HANDLER_TESTS.rglob("test_*.py"))
        if path == own or head_names(path.read_text(), handler=handler)
    ]


def test_every_handler_has_tests_that_say_so_and_use_its_messages() -> None:
    """The head alone would be a claim."""
    handlers = [path.stem for path in HANDLERS.glob("[!_]*.py")]
    assert len(handlers) > 40
    without = [
        handler
        for handler in sorted(handlers)
        if not any(_reaches(path.read_text(), handler) for path in files_of(handler))
    ]
    assert without == []


def _reaches(text: str, handler: str) -> bool:
    """It, or a kit that it imports, has the handler, its key or its request."""
    names = (handler, handler.upper(), f"{api_name(handler)}Request")
    return any(re.search(rf"\b{name}\b", one) for name in names for one in [text, *kits_of(text)])


def kits_of(text: str) -> list[str]:
    modules = [name.replace(".", "/") for name in imported_modules(text)]
    files = [ROOT / "tests" / f"{name}.py" for name in modules if name.startswith("kits/")]
    return [path.read_text() for path in files if path.exists()]
