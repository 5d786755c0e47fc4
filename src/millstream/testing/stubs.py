"""Checks that every kernel's `.pyi` agrees with both of its twins.

mypy trusts a stub blindly. This compares names, constants, parameters and defaults with the
imported modules, and the annotations with those of the plain twin, whose body mypy checks.

    python -m millstream.testing.stubs
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from millstream import kernels

KERNELS = Path(next(iter(kernels.__path__)))

Function = ast.FunctionDef | ast.AsyncFunctionDef
Signature = list[tuple[str, str, bool]]
"""Name, kind, and whether there is a default, of each parameter without `self`."""


def main() -> int:
    """Print every disagreement; 1 when there is one."""
    problems = [problem for path in sorted(KERNELS.glob("*.pyi")) for problem in check(path)]
    for problem in problems:
        sys.stdout.write(f"{problem}\n")
    return 1 if problems else 0


def check(stub_path: Path) -> Iterator[str]:
    """Disagreements between one stub and its twins, one line each."""
    name = stub_path.stem
    stub = ast.parse(stub_path.read_text())
    plain_path = KERNELS / "_plain" / f"{name}.py"
    if not plain_path.exists():
        yield f"{name}: has a stub and no plain twin"
        return
    for where in ("_plain", "_compiled"):
        module = _twin(where, name)
        if module is None:
            yield f"{name}: the compiled twin was not built"
            continue
        for problem in _check_module(stub, module):
            yield f"{where}/{name}: {problem}"
    for problem in _check_annotations(stub, ast.parse(plain_path.read_text())):
        yield f"_plain/{name}: {problem}"


def _twin(where: str, name: str) -> ModuleType | None:
    spec = find_spec(f"millstream.kernels.{where}.{name}")
    is_built = spec is not None and isinstance(spec.loader, ExtensionFileLoader)
    if where == "_compiled" and not is_built:
        return None
    return importlib.import_module(f"millstream.kernels.{where}.{name}")


def _check_module(stub: ast.Module, module: ModuleType) -> Iterator[str]:
    declared = sorted(_constant(stub, "__all__") or [])
    if declared != sorted(module.__all__):
        different = sorted(set(declared) ^ set(module.__all__))
        yield f"__all__ differs in {', '.join(different)}"
    for node in stub.body:
        match node:
            case ast.FunctionDef():
                yield from _check_call(node, getattr(module, node.name, None), node.name)
            case ast.ClassDef():
                yield from _check_class(node, getattr(module, node.name, None))
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                expected = ast.literal_eval(value)
                if getattr(module, name, None) != expected:
                    yield f"{name} is {getattr(module, name, None)!r}, the stub says {expected!r}"


def _check_class(stub: ast.ClassDef, actual: object) -> Iterator[str]:
    if not isinstance(actual, type):
        yield f"no class {stub.name}"
        return
    for node in stub.body:
        if not isinstance(node, ast.FunctionDef):
            continue
        where = f"{stub.name}.{node.name}"
        member = inspect.getattr_static(actual, node.name, None)
        if _is_property(node):
            if not inspect.isdatadescriptor(member):
                yield f"{where} is no property"
        elif not (node.name.startswith("__") and _is_slot(member)):
            yield from _check_call(node, member, where)


def _is_property(node: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "property" for each in node.decorator_list)


def _is_slot(member: object) -> bool:
    # Special methods of an extension class are C slots, which know no parameters.
    return type(member).__name__ in ("wrapper_descriptor", "method_descriptor")


def _check_call(stub: ast.FunctionDef, actual: Any, where: str) -> Iterator[str]:
    if not callable(actual):
        yield f"no function {where}"
        return
    expected, found = _stub_signature(stub), _actual_signature(actual)
    if expected != found:
        stated = _format_signature(expected)
        yield f"{where} takes {_format_signature(found)}, the stub says {stated}"


def _stub_signature(stub: Function) -> Signature:
    arguments = stub.args
    positional = arguments.posonlyargs + arguments.args
    first_default = len(positional) - len(arguments.defaults)
    signature = [
        (argument.arg, "positional", index >= first_default)
        for index, argument in enumerate(positional)
    ]
    signature += [
        (argument.arg, "keyword", default is not None)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return [each for each in signature if each[0] != "self"]


def _actual_signature(actual: Any) -> Signature:
    return [
        (
            parameter.name,
            "keyword" if parameter.kind is parameter.KEYWORD_ONLY else "positional",
            parameter.default is not parameter.empty,
        )
        for parameter in inspect.signature(actual).parameters.values()
        if parameter.name != "self"
    ]


def _format_signature(signature: Signature) -> str:
    return (
        "("
        + ", ".join(
            f"{'keyword ' if kind == 'keyword' else ''}{name}{'=...' if has_default else ''}"
            for name, kind, has_default in signature
        )
        + ")"
    )


def _check_annotations(stub: ast.Module, twin: ast.Module) -> Iterator[str]:
    """Parameter and return types of the stub's functions against the twin's, as text."""
    expected, found = dict(_annotated(stub)), dict(_annotated(twin))
    for name, types in expected.items():
        if name in found and found[name] != types:
            yield f"{name} is annotated {found[name]}, the stub says {types}"


def _annotated(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, str]]:
    for node in tree.body:
        match node:
            case ast.ClassDef(name=name):
                yield from _annotated(node, f"{prefix}{name}.")
            case ast.FunctionDef(name=name, args=arguments, returns=returns):
                every = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
                types = [_type_text(each.annotation) for each in every if each.arg != "self"]
                yield f"{prefix}{name}", f"({', '.join(types)}) -> {_type_text(returns)}"


def _type_text(annotation: ast.expr | None) -> str:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return "nothing" if annotation is None else ast.unparse(annotation)


def _constant(tree: ast.Module, name: str) -> Any:
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return ast.literal_eval(value)
    return None


if __name__ == "__main__":
    sys.exit(main())
