"""From a file's pages to a socket without a copy in between; see `send_file.pyi`."""

from millstream.kernels._select import load

_kernel = load("send_file")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
