"""The compiled core: record batches walked, checked, decoded and encoded; buffers in, numbers out.

Each kernel exists twice: `_compiled/NAME.py` (Cython, pure-Python mode) and `_plain/NAME.py`, its
separate plain-Python twin, which is both the fallback and the oracle of the tests. `NAME.py`
chooses one of them; `NAME.pyi` describes both.

Environment: MILLSTREAM_KERNELS=plain forces the twins, =compiled refuses to start without the
compiled modules, unset takes the compiled ones where they were built.
"""
