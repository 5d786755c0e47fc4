"""The common shapes of Fetch: requests read, answers written, cursors; see `fetch.pyi`."""

import importlib

from millstream.kernels._select import load

# Cursors read slots: both twins come from the same package.
_package = load("connection").__name__.rpartition(".")[0]
_kernel = importlib.import_module(f"{_package}.fetch")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
