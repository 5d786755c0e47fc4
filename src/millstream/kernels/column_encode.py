"""Columns into record batches; see `column_encode.pyi`."""

from millstream.kernels._select import load

_kernel = load("column_encode")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
