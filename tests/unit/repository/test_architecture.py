"""ARCHITECTURE.md names files, functions and layers: they are there, and say the same as the code.

Tried on wrong names first.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from kits.paths import ROOT

SRC = ROOT / "src" / "millstream"
PAGE = ROOT / "ARCHITECTURE.md"

SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?!/)[\w.-]+(?:/[\w.-]+)+/?|[\w-]+\.(?:py|pyi|pyx|md|toml)")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
NAMED = re.compile(r"`([\w/.]+\.py)`((?:,?\s+`[\w.]+`)+)")
"""A file, then what is in it: "`a/b.py` `Class.method`, `function` - what happens there"."""
METHOD = re.compile(r"_?[A-Z]\w*\.\w+")
FILE_ENDINGS = (".py", ".pyi", ".md", ".toml")


def fenced(text: str) -> Iterator[str]:
    return (one.group(1) for one in re.finditer(r"```\n(.*?)```", text, re.DOTALL))


def prose(text: str) -> str:
    return re.sub(r"```\n.*?```", "", text, flags=re.DOTALL)


# -- files -------------------------------------------------------------------------------------


def missing_files(text: str) -> list[str]:
    """Paths below the repository or the package, and targets of links."""
    spans = [span for span in SPAN.findall(prose(text)) if PATH.fullmatch(span)]
    names = {*spans, *LINK.findall(text)}
    return sorted(one for one in names if not (SRC / one).exists() and not (ROOT / one).exists())


def test_a_file_that_is_not_there_is_found() -> None:
    text = "`storage/log/log.py`, `storage/gone.py`, `wire/nothing`, `gone.toml`, [x](docs/gone.md)"
    assert missing_files(text) == ["docs/gone.md", "gone.toml", "storage/gone.py", "wire/nothing"]
    assert missing_files("`/controller` of `docs/adr`, `pyproject.toml`, `.log.swap`") == []


def test_every_file_named_exists() -> None:
    assert missing_files(PAGE.read_text()) == []


# -- functions ---------------------------------------------------------------------------------


def members(node: ast.ClassDef) -> set[str]:
    """Methods, fields, and attributes that its methods set."""
    found = set()
    for one in ast.walk(node):
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
    return found


@cache
def body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text()).body


@cache
def classes(path: Path) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in body(path) if isinstance(node, ast.ClassDef)}


def is_defined(path: Path, name: str) -> bool:
    """A function or class of the module, or a method that the class itself has."""
    if not path.exists():
        return False
    owner, _, method = name.rpartition(".")
    if owner:
        return owner in classes(path) and method in members(classes(path)[owner])
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return any(isinstance(node, kinds) and node.name == name for node in body(path))


def missing_functions(text: str) -> list[str]:
    return [
        f"{file} {name}"
        for file, names in NAMED.findall(prose(text))
        for name in SPAN.findall(names)
        if not name.endswith(FILE_ENDINGS) and not is_defined(SRC / file, name)
    ]


def test_a_function_that_is_not_there_is_found() -> None:
    text = """`storage/log/log.py` `Log.append_as_leader`, `Log.gone` - writes. `storage/flush.py`
    `run_jobs` and `storage/flush.py` `run_job`; `storage/gone.py` `x`, `model/ids.py`"""
    assert missing_functions(text) == [
        "storage/log/log.py Log.gone",
        "storage/flush.py run_job",
        "storage/gone.py x",
    ]


def test_every_function_named_after_its_file_is_defined_there() -> None:
    text = PAGE.read_text()
    assert len(NAMED.findall(prose(text))) > 100
    assert missing_functions(text) == []


@cache
def sources() -> dict[Path, str]:
    return {path: path.read_text() for path in SRC.rglob("*.py")}


@cache
def members_with_bases(name: str) -> frozenset[str]:
    """Classes of one name are put together."""
    found: set[str] = set()
    for path, text in sources().items():
        if f"\nclass {name}(" not in text and f"\nclass {name}:" not in text:
            continue  # to parse all of them takes seconds
        node = classes(path)[name]
        found |= members(node)
        for base in node.bases:
            base_name = ast.unparse(base).split("[")[0].split(".")[-1]
            found |= members_with_bases(base_name) if base_name != name else set()
    return frozenset(found)


def missing_methods(text: str) -> list[str]:
    found = []
    for span in SPAN.findall(prose(text)):
        if METHOD.fullmatch(span):
            owner, _, method = span.partition(".")
            if method not in members_with_bases(owner):
                found.append(span)
    return found


def test_a_method_that_is_nowhere_is_found() -> None:
    text = "`Log.begin_flush` (of a base), `Partition._replicated`, `Log.gone`, `Nobody.x`"
    assert missing_methods(text) == ["Log.gone", "Nobody.x"]


def test_every_method_named_without_its_file_is_somewhere() -> None:
    assert missing_methods(PAGE.read_text()) == []


# -- layers ------------------------------------------------------------------------------------


def packages() -> set[str]:
    """Those with code: a package that is only reserved has nothing to be described."""
    found = {path.parent for path in SRC.glob("*/*.py") if path.name != "__init__.py"}
    modules = {path for path in SRC.glob("*.py") if not path.name.startswith("_")}
    return {one.stem for one in (*found, *modules)}


def contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return found


def layers_of(contract: dict[str, Any]) -> list[set[str]]:
    """Without those in brackets, which are still to come."""
    lines = [set(re.findall(r"(?<!\()\b\w+", layer)) for layer in contract["layers"]]
    return [line for line in lines if line]


def drawn_layers(text: str, lowest: str) -> list[set[str]]:
    (drawn,) = [
        one
        for one in fenced(text)
        if one.rstrip().splitlines()[-1].startswith(lowest) or f"\n{lowest}\n" in one
    ]
    lines = [line for line in drawn.splitlines() if line and not line.startswith("testing")]
    # What stands behind two spaces says what is in a layer.
    return [set(re.findall(r"\w+", line.partition("  ")[0])) for line in lines]


def test_the_layers_drawn_are_those_that_are_enforced() -> None:
    layered = [one for one in contracts() if one["type"] == "layers"]
    for contract in layered:
        drawn = drawn_layers(PAGE.read_text(), contract["layers"][-1])
        assert drawn == layers_of(contract), contract["name"]
    assert set().union(*layers_of(layered[0])) == packages() - {"testing"}


def test_every_package_is_in_the_table_of_layers() -> None:
    section = PAGE.read_text().partition("## Layers\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert sorted(rows) == sorted(packages())


def test_the_other_contracts_are_counted_right() -> None:
    assert len(contracts()) == 7
    assert "Four more contracts hold" in PAGE.read_text()


# -- packages ----------------------------------------------------------------------------------


def missing_modules(package: Path, text: str) -> list[str]:
    """Modules that a package's docstring names, below it or below `src/millstream`."""
    names = [span for span in SPAN.findall(text) if span.endswith(".py") and "NAME" not in span]
    return [one for one in names if not (package / one).exists() and not (SRC / one).exists()]


def test_a_module_that_is_not_there_is_found_in_a_docstring() -> None:
    text = "`log.py`, `gone.py`, `storage/log/base.py`, `NAME.py`"
    assert missing_modules(SRC / "storage" / "log", text) == ["gone.py"]


def test_package_docstrings_name_modules_that_exist() -> None:
    found = []
    for path in SRC.rglob("__init__.py"):
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        found += [f"{path.parent}: {one}" for one in missing_modules(path.parent, text)]
    assert found == []
