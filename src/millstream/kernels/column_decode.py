"""Many record batches into one set of columns; see `column_decode.pyi`."""

from millstream.kernels._select import load

_kernel = load("column_decode")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
