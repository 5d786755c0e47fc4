"""Chooses between a compiled kernel and its plain-Python twin; warns once about the twin."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType

CHOICE_VARIABLE = "MILLSTREAM_KERNELS"

_has_warned = False


def load(name: str) -> ModuleType:
    """The compiled kernel `name` where it was built and not switched off, else its twin."""
    choice = os.environ.get(CHOICE_VARIABLE, "")
    if choice not in ("", "plain", "compiled"):
        raise ImportError(f"{CHOICE_VARIABLE} is {choice!r}; it can be 'plain' or 'compiled'")
    if choice != "plain":
        if _is_built(name):
            return importlib.import_module(f"millstream.kernels._compiled.{name}")
        if choice == "compiled":
            raise ImportError(
                f"{CHOICE_VARIABLE}=compiled, but kernel {name!r} was not built; "
                "reinstall Millstream with a C compiler on the machine"
            )
        _warn_once_not_compiled()
    return importlib.import_module(f"millstream.kernels._plain.{name}")


def _is_built(name: str) -> bool:
    # The Cython source run interpreted is ten times slower than the twin and unchecked: only a
    # real extension module is accepted.
    spec = importlib.util.find_spec(f"millstream.kernels._compiled.{name}")
    return spec is not None and isinstance(spec.loader, importlib.machinery.ExtensionFileLoader)


def _warn_once_not_compiled() -> None:
    global _has_warned  # noqa: PLW0603
    if not _has_warned:
        _has_warned = True
        sys.stderr.write(
            "millstream: compiled kernels are not installed, running in plain Python "
            "(about ten times slower; install with a C compiler for full speed)\n"
        )
