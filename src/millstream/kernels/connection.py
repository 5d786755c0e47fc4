"""One client's connection without I/O: frames in, answers out in order; see `connection.pyi`."""

from millstream.kernels._select import load

_kernel = load("connection")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
