"""Partitions and producers as numbers, and the table of partitions; see `slots.pyi`."""

import importlib

from millstream.kernels._select import load

# The twins of `slots` and `connection` share their insides: both come from the same package.
_package = load("connection").__name__.rpartition(".")[0]
_kernel = importlib.import_module(f"{_package}.slots")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
