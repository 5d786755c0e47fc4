"""Whether batches follow each other, by their headers only; see `header_chain.pyi`."""

from millstream.kernels._select import load

_kernel = load("header_chain")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
