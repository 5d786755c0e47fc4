"""Which tests belong to changed files, by path: what `make changed` runs."""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from kits.repository.handler_heads import head_names

SOURCES: Final = PurePosixPath("src/millstream")
TESTS: Final = PurePosixPath("tests")
UNIT: Final = TESTS / "unit"
KITS: Final = TESTS / "kits"
INTEROP: Final = TESTS / "interop"
KERNELS: Final = SOURCES / "kernels"
HANDLERS: Final = SOURCES / "broker" / "handlers"
BESIDE_SOURCES: Final = ("bench", "examples")
"""Folders beside `src` that have unit tests."""
CONCERN_ALL: Final = frozenset({"pyproject.toml", "setup.py", "Makefile", "tests/conftest.py"})

NO_TESTS: Final = "no tests of its own"
RUN_ALL: Final = "concerns every test: make test"
RUN_INTEROP: Final = "also has tests in make interop"


class Selection(NamedTuple):
    """What to run, and notes on files with tests in other targets or without tests."""

    tests: tuple[str, ...]
    notes: tuple[str, ...]


def select_tests(changed: Iterable[str], test_files: Mapping[str, str]) -> Selection:
    """The tests of `changed`. `test_files`: every Python file below `tests/`, and its text."""
    tree = TreeOfTests(test_files)
    chosen: set[PurePosixPath] = set()
    notes: list[str] = []
    for name in sorted(changed):
        found = set(tree.tests_of(PurePosixPath(name)))
        foreign = {path for path in found if path.is_relative_to(INTEROP)}
        chosen |= found - foreign
        if foreign:
            notes.append(f"{name}: {RUN_INTEROP}")
        elif not found:
            notes.append(f"{name}: {RUN_ALL if name in CONCERN_ALL else NO_TESTS}")
    return Selection(tuple(sorted(map(str, _outermost(chosen)))), tuple(notes))


def _outermost(paths: set[PurePosixPath]) -> Iterator[PurePosixPath]:
    """Remove paths below a folder that is in the list too."""
    return (path for path in paths if not paths & set(path.parents))


class TreeOfTests:
    """Where the tests lie, and what each file imports."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._texts = {PurePosixPath(name): text for name, text in files.items()}
        self._folders = {folder for path in self._texts for folder in path.parents}

    def tests_of(self, changed: PurePosixPath) -> Iterator[PurePosixPath]:
        """The tests of one file, which may be deleted; empty when there are none."""
        if changed.is_relative_to(SOURCES):
            yield from self._tests_of_source(changed)
        elif changed.parts[0] in BESIDE_SOURCES:
            yield from self._mirror(changed)
        elif changed.is_relative_to(KITS):
            yield from self._importers(changed)
        elif changed.is_relative_to(TESTS):
            yield from self._tests_of_test(changed)
        elif changed.suffix == ".md":
            yield from self._tests_where(lambda text: f'{changed.name}"' in text)

    def _tests_of_source(self, changed: PurePosixPath) -> Iterator[PurePosixPath]:
        yield from self._mirror(changed.relative_to(SOURCES))
        if changed.is_relative_to(KERNELS):
            yield from (path for path in self._texts if path.match("tests/property/*parity.py"))
        if changed.parent == HANDLERS:
            yield from self._tests_where(lambda text: head_names(text, handler=changed.stem))

    def _mirror(self, source: PurePosixPath) -> Iterator[PurePosixPath]:
        """The nearest folder of tests going up, but never all unit tests."""
        folder = UNIT / source.parent
        while folder != UNIT and folder not in self._folders:
            folder = folder.parent
        if folder != UNIT:
            yield folder

    def _tests_of_test(self, changed: PurePosixPath) -> Iterator[PurePosixPath]:
        if _is_test(changed):
            yield from {changed} & self._texts.keys()
        elif changed.name == "conftest.py":
            yield from {changed.parent} & (self._folders - {TESTS})
        elif changed.is_relative_to(INTEROP):
            yield INTEROP
        else:
            yield from self._tests_where(lambda text: changed.stem in text)

    def _tests_where(self, holds: Callable[[str], bool]) -> Iterator[PurePosixPath]:
        """Test files whose text it holds for, and those that import such a kit."""
        for path, text in self._texts.items():
            if holds(text):
                yield from [path] if _is_test(path) else self._importers(path)

    def _importers(self, kit: PurePosixPath) -> Iterator[PurePosixPath]:
        """Tests that import `kit`, directly or through other kits or their `conftest.py`."""
        reached, fresh = {kit}, [kit]
        while fresh:
            current = fresh.pop()
            for path, text in self._texts.items():
                if path not in reached and _imports(text, current):
                    reached.add(path)
                    fresh.append(path)
        for path in reached:
            if _is_test(path):
                yield path
            elif path.name == "conftest.py":
                yield path.parent


def _is_test(path: PurePosixPath) -> bool:
    return path.name.startswith("test_") and path.suffix == ".py"


def _imports(text: str, kit: PurePosixPath) -> bool:
    # The name of the file first: it spares the parsing of nearly all others.
    return kit.stem in text and _module(kit) in imported_modules(text)


def _module(kit: PurePosixPath) -> str:
    """The module name that tests import: `kits.broker.data_plane`."""
    return ".".join(kit.relative_to(TESTS).with_suffix("").parts)


def imported_modules(text: str) -> Iterator[str]:
    """Every module that an import may mean: `from a import b` is `a` and `a.b`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                yield from (one.name for one in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield module
                yield from (f"{module}.{one.name}" for one in names)
