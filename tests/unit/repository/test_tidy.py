"""House rules that no linter knows, as tests. Every rule is tried on a bad example first."""

import ast
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import millstream
from kits.paths import ROOT

SRC = ROOT / "src" / "millstream"
INVARIANTS = ROOT / "docs" / "invariants.md"

MODULE_LINES_MAX = 600
MACHINE_LINES_MAX = 800
KERNEL_LINES_MAX = 300
FUNCTION_LINES_MAX = 70
UNITS = {"KIB", "MIB"}
"""In `limits.py` without being limits."""

SEAMS = ("runtime", "testing")
CLOCKS_AND_CHANCE = {"time", "random", "secrets"}
"""Modules that only the seams may use."""
CALLS_AROUND_SEAMS = {"os.urandom", "uuid.uuid1", "uuid.uuid4", "datetime.now", "datetime.utcnow"}

MACHINE_PATH = re.compile(r"(?<![\w.~}-])/(?:home|root|work|Users|mnt|workspace)/[\w.-]+")
INVARIANT_NUMBER = re.compile(r"I-\d+")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")

CYTHON_SUFFIXES = (".pyx", ".pxd")
CYTHON_FUNCTION = re.compile(r"^( *)(?:def|cpdef|cdef)\b(?! class| enum| struct| extern).*\(")
CYTHON_ASSERT = re.compile(r"^\s*assert\b")
CYTHON_PRINT = re.compile(r"(?<![\w.])print\(")
CYTHON_IMPORT = re.compile(r"^\s*(?:from|import|cimport)\s+(\w+)")


@dataclass(frozen=True)
class Source:
    """One module."""

    path: Path
    """Below `src/millstream`."""
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed once for all rules: that is most of their time."""
        return ast.parse(self.text)

    @property
    def is_cython(self) -> bool:
        """In Cython's own syntax, which `ast` does not read: rules look at its lines."""
        return self.path.suffix in CYTHON_SUFFIXES

    @property
    def lines(self) -> list[tuple[int, str]]:
        return list(enumerate(self.text.splitlines(), 1))


def sources(*suffixes: str) -> Iterator[Source]:
    """Every module of the package with one of the suffixes, stubs left out.

    One at a time: all trees together are much memory.
    """
    paths = [
        path
        for path in sorted(SRC.rglob("*"))
        if path.suffix in suffixes and "generated" not in path.parts
    ]
    return (Source(path.relative_to(SRC), path.read_text()) for path in paths)


# -- rules: each gives the lines it dislikes ---------------------------------------------------


def asserts(source: Source) -> Iterator[int]:
    """`python -O` drops them; `invariant()` stays."""
    if source.is_cython:
        return (number for number, line in source.lines if CYTHON_ASSERT.match(line))
    return (node.lineno for node in ast.walk(source.tree) if isinstance(node, ast.Assert))


def prints(source: Source) -> Iterator[int]:
    if source.is_cython:
        yield from (number for number, line in source.lines if CYTHON_PRINT.search(line))
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            yield node.lineno


def clocks_and_chance(source: Source) -> Iterator[int]:
    """Time and randomness arrive by constructor, or a simulation cannot repeat a run."""
    if source.path.parts[0] in SEAMS:
        return
    if source.is_cython:
        for number, line in source.lines:
            match_of = CYTHON_IMPORT.match(line)
            if match_of and match_of[1] in CLOCKS_AND_CHANCE:
                yield number
        return
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=names):
                if {one.name.split(".")[0] for one in names} & CLOCKS_AND_CHANCE:
                    yield node.lineno
            case ast.ImportFrom(module=str(module), level=0):
                if module.split(".")[0] in CLOCKS_AND_CHANCE:
                    yield node.lineno
            case ast.Attribute():
                if ".".join(ast.unparse(node).split(".")[-2:]) in CALLS_AROUND_SEAMS:
                    yield node.lineno


def long_modules(source: Source) -> Iterator[int]:
    limit = MACHINE_LINES_MAX if source.path.name == "machine.py" else MODULE_LINES_MAX
    if {"_compiled", "_plain"} & set(source.path.parts):
        limit = KERNEL_LINES_MAX
    lines = source.text.count("\n")
    if lines > limit:
        yield lines


def long_functions(source: Source) -> Iterator[int]:
    if source.is_cython:
        yield from (line for line, size in cython_functions(source) if size > FUNCTION_LINES_MAX)
        return
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            end = node.end_lineno or node.lineno
            if end - node.lineno + 1 > FUNCTION_LINES_MAX:
                yield node.lineno


def cython_functions(source: Source) -> Iterator[tuple[int, int]]:
    """(line, number of lines) of every function; it ends at the next line that is not deeper."""
    lines = source.text.splitlines()
    for start, line in enumerate(lines):
        header = CYTHON_FUNCTION.match(line)
        if header is None:
            continue
        stop = last = start + 1
        while stop < len(lines) and (
            not lines[stop].strip()
            or lines[stop].startswith(f"{header[1]} ")
            or lines[stop].startswith(f"{header[1]})")  # the end of its parameters
        ):
            stop += 1
            last = stop if lines[stop - 1].strip() else last
        yield start + 1, last - start


def missing_docstring(source: Source) -> Iterator[int]:
    if source.is_cython:
        # A `.pxd` has no docstring: a comment says what it is for.
        if not source.text.startswith("# " if source.path.suffix == ".pxd" else '"""'):
            yield 1
        return
    if not ast.get_docstring(source.tree):
        yield 1


def unfinished(source: Source) -> Iterator[int]:
    """What is left to do belongs into an issue."""
    return (number for number, line in source.lines if UNFINISHED.search(line))


def limits_without_reason(source: Source) -> Iterator[int]:
    """A limit without the reason for its number."""
    if source.path != Path("model/limits.py"):
        return
    body = source.tree.body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign | ast.Assign):
            continue
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
        is_told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if ast.unparse(target) not in UNITS and not is_told:
            yield node.lineno


Rule = Callable[[Source], Iterator[int]]
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
LONG_METHOD = "cdef class A:\n    cdef int f(\n        self\n    ) except -1:\n"
LONG_METHOD += "        x = 1\n\n" * (FUNCTION_LINES_MAX // 2) + "\n    cdef int y\n"
NOT_LONG = "cdef int f():\n    return 1\n\n\ncdef class A:\n" + "    cdef int x\n" * 70
BAD: list[tuple[Rule, str, str]] = [
    (asserts, "storage/a.py", "assert 1"),
    (prints, "storage/a.py", "print(1)"),
    (clocks_and_chance, "storage/a.py", "import time"),
    (clocks_and_chance, "storage/a.py", "from random import choice"),
    (clocks_and_chance, "storage/a.py", "import os\nos.urandom(3)"),
    (clocks_and_chance, "cli/a.py", "import datetime\ndatetime.datetime.now()"),
    (long_modules, "storage/a.py", "x = 1\n" * 601),
    (long_modules, "groups/machine.py", "x = 1\n" * 801),
    (long_modules, "kernels/_plain/a.py", "x = 1\n" * 301),
    (long_functions, "storage/a.py", LONG_FUNCTION),
    (missing_docstring, "storage/__init__.py", ""),
    (limits_without_reason, "model/limits.py", 'A: Final = 1\nB = 2\n"""Because."""'),
    (unfinished, "storage/a.py", "x = 1  # TO" + "DO: more"),
    (asserts, "kernels/_compiled/a.pyx", "cdef int f():\n    assert 1\n"),
    (prints, "kernels/_compiled/a.pyx", "print(1)"),
    (clocks_and_chance, "kernels/_compiled/a.pyx", "from random cimport choice"),
    (long_modules, "kernels/_compiled/a.pyx", "x = 1\n" * 301),
    (long_modules, "kernels/_compiled/a.pxd", "cdef int x\n" * 301),
    (long_functions, "kernels/_compiled/a.pyx", LONG_FUNCTION),
    (long_functions, "kernels/_compiled/a.pyx", LONG_METHOD),
    (missing_docstring, "kernels/_compiled/a.pyx", "# what it is for\nimport cython"),
    (missing_docstring, "kernels/_compiled/a.pxd", "cdef int x"),
    (unfinished, "kernels/_compiled/a.pyx", "cdef int x  # FIX" + "ME"),
]
GOOD: list[tuple[Rule, str, str]] = [
    (clocks_and_chance, "runtime/clock.py", "import time"),
    (clocks_and_chance, "storage/a.py", "segment.time.now()"),
    (long_modules, "groups/machine.py", "x = 1\n" * 800),
    (limits_without_reason, "model/limits.py", 'KIB: Final = 1024\nB: Final = 2\n"""Why."""'),
    (prints, "kernels/_compiled/a.pyx", "fingerprint(1)"),
    (clocks_and_chance, "kernels/_compiled/a.pyx", "cdef long time"),
    (long_modules, "kernels/_compiled/a.pyx", "x = 1\n" * 300),
    (long_functions, "kernels/_compiled/a.pyx", NOT_LONG),
    (missing_docstring, "kernels/_compiled/a.pyx", '"""What it is for."""'),
    (missing_docstring, "kernels/_compiled/a.pxd", "# What it is for."),
]
CYTHON_RULES = list(dict.fromkeys(rule for rule, path, _ in BAD if path.endswith(CYTHON_SUFFIXES)))
RULES = list(dict.fromkeys(rule for rule, _, _ in BAD))


@pytest.mark.parametrize(("rule", "path", "text"), BAD)
def test_rule_finds_the_bad_example(rule: Rule, path: str, text: str) -> None:
    assert list(rule(Source(Path(path), text)))


@pytest.mark.parametrize(("rule", "path", "text"), GOOD)
def test_rule_leaves_the_good_example(rule: Rule, path: str, text: str) -> None:
    assert not list(rule(Source(Path(path), text)))


def test_sources_keep_the_rules() -> None:
    found = [
        f"{rule.__name__}: {source.path}:{line}"
        for source in sources(".py")
        for rule in RULES
        for line in rule(source)
    ]
    assert found == []


@pytest.mark.parametrize("rule", CYTHON_RULES, ids=lambda rule: rule.__name__)
def test_cython_source_keeps_the_rule(rule: Rule) -> None:
    looked_at = list(sources(*CYTHON_SUFFIXES))
    assert {one.path.suffix for one in looked_at} == set(CYTHON_SUFFIXES)
    found = [f"{source.path}:{line}" for source in looked_at for line in rule(source)]
    assert not found


def test_every_package_is_one() -> None:
    """A folder without `__init__.py` would be left out of the wheel."""
    folders = {path.parent for path in SRC.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_installed_package_is_this_tree() -> None:
    """Otherwise all of this looks at other files than the tests run."""
    assert Path(millstream.__file__).parent.samefile(SRC)


# -- invariants --------------------------------------------------------------------------------


def invariant_numbers(source: Source) -> Iterator[tuple[int, str]]:
    """(line, number) of every number in the message of an `invariant(...)` call."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("invariant"):
            for argument in node.args[1:2]:
                for number in INVARIANT_NUMBER.findall(ast.unparse(argument)):
                    yield node.lineno, number


def test_invariant_numbers_are_found() -> None:
    text = "invariant(a <= b, 'I-05 order', a=a)\ninvariant(\n    c, f'I-07 {c}')\nother('I-01')"
    assert list(invariant_numbers(Source(Path("a.py"), text))) == [(1, "I-05"), (2, "I-07")]


def test_every_invariant_in_code_is_written_down() -> None:
    if not INVARIANTS.exists():
        pytest.skip("docs/invariants.md is not there")
    known = set(INVARIANT_NUMBER.findall(INVARIANTS.read_text()))
    used = [(one.path, *found) for one in sources(".py") for found in invariant_numbers(one)]
    assert used
    assert [f"{path}:{line} {number}" for path, line, number in used if number not in known] == []


# -- documents ---------------------------------------------------------------------------------

DOCUMENT_COLUMNS_MAX = 100


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def long_document_lines(text: str) -> Iterator[int]:
    """Lines of prose that could be wrapped: not tables, code, or a link that is as long itself."""
    is_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.lstrip().startswith("|") and len(line) > DOCUMENT_COLUMNS_MAX:
            indent = len(line) - len(line.lstrip())
            if indent + max(map(len, line.split())) <= DOCUMENT_COLUMNS_MAX:
                yield number


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("short\n" + "word " * 21, [2]),
        ("- " + "word " * 20 + "\n\n```\n" + "code " * 30 + "\n```\n" + "word " * 30, [1, 6]),
        ("| " + "cell " * 30 + "|", []),
        ("- https://example.org/" + "a" * 90, []),
        ("word " * 19 + "words", []),
    ],
)
def test_long_lines_of_documents_are_found(text: str, found: list[int]) -> None:
    assert list(long_document_lines(text)) == found


def test_documents_wrap_at_100_columns() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in documents()
        for line in long_document_lines(path.read_text())
    ]
    assert found == []


# -- the whole repository ----------------------------------------------------------------------


def repository_files() -> list[Path]:
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "-c", "-o", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git work tree")
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize(
    ("text", "is_bad"),
    [
        ("see /" + "home/jane/x", True),
        ("'/" + "root/.cache'", True),
        ("https://example.org/" + "home/page", False),
        ("~/" + "work/x", False),
        ("tests/" + "root/a", False),
    ],
)
def test_machine_paths_are_told_from_others(text: str, is_bad: bool) -> None:
    assert bool(MACHINE_PATH.search(text)) is is_bad


def test_no_file_names_a_path_of_one_machine() -> None:
    found = []
    for path in repository_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {one}" for one in MACHINE_PATH.findall(text)]
    assert found == []
