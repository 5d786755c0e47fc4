"""CRC-32C of any buffer; see `crc.pyi`."""

from millstream.kernels._select import load

_kernel = load("crc")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
