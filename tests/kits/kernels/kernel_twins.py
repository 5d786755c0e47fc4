"""Both twins of a kernel for the same test: the compiled module and the plain-Python one."""

import importlib
import importlib.util
import os
from importlib.machinery import ExtensionFileLoader
from types import ModuleType
from typing import Any

import pytest

from millstream.kernels._select import CHOICE_VARIABLE


def compiled(name: str) -> ModuleType | None:
    """The compiled kernel, or None where it was not built (its source run interpreted is none)."""
    spec = importlib.util.find_spec(f"millstream.kernels._compiled.{name}")
    if spec is None or not isinstance(spec.loader, ExtensionFileLoader):
        return None
    return importlib.import_module(spec.name)


def plain(name: str) -> ModuleType:
    return importlib.import_module(f"millstream.kernels._plain.{name}")


def needs_compiled(*names: str, is_used: bool = False) -> pytest.MarkDecorator:
    """Skips, with the reason, where one of the kernels was not built; fails with CI=true.

    With `is_used` also where it was built and MILLSTREAM_KERNELS chose the twins.
    """
    if is_used and os.environ.get(CHOICE_VARIABLE) == "plain":
        return pytest.mark.skip(reason=f"{CHOICE_VARIABLE}=plain")
    missing = [name for name in names if compiled(name) is None]
    reason = f"not compiled: {', '.join(missing)}; run: make build/.kernels"
    if missing and os.environ.get("CI") == "true":
        raise RuntimeError(reason)
    return pytest.mark.skipif(bool(missing), reason=reason)


def twins(name: str) -> list[Any]:
    """Values for `@pytest.mark.parametrize("kernel", ...)`: the compiled twin, then the plain one.

    A compiled kernel that was not built is a skip with its reason, and a failure with CI=true.
    """
    return [
        pytest.param(compiled(name), id="compiled", marks=needs_compiled(name)),
        pytest.param(plain(name), id="plain"),
    ]
