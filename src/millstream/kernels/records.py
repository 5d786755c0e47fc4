"""Single records inside one batch's payload checked, located and filtered; see `records.pyi`."""

from millstream.kernels._select import load

_kernel = load("records")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
