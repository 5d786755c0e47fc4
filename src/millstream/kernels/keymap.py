"""Newest offset per key in a fixed amount of memory, for compaction; see `keymap.pyi`."""

from millstream.kernels._select import load

_kernel = load("keymap")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
