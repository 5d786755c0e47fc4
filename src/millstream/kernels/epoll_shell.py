"""The system calls of unencrypted sockets around the connection core; see `epoll_shell.pyi`."""

import importlib

from millstream.kernels._select import load

# It works on the insides of connections: both come from the same package.
_package = load("connection").__name__.rpartition(".")[0]
_kernel = importlib.import_module(f"{_package}.epoll_shell")
globals().update({name: getattr(_kernel, name) for name in _kernel.__all__})
__all__ = _kernel.__all__
