"""The compiled core: record batches, and the fast path of connections, Produce and Fetch.

Each kernel exists twice: in `_compiled` (Cython: `NAME.py` in pure-Python mode, or `NAME.pyx`) and
as `_plain/NAME.py`, its separate plain-Python twin, which is both the fallback and the oracle of
the tests. `NAME.py` chooses one of them; `NAME.pyi` describes both. docs/kernels.md lists them.

Environment: MILLSTREAM_KERNELS=plain forces the twins, =compiled refuses to start without the
compiled modules, unset takes the compiled ones where they were built.
"""
