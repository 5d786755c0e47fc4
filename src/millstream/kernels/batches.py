"""Record batches v2 walked, checked and stamped in place; see `batches.pyi`."""

from millstream.kernels._select import load

_kernel = load("batches")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
