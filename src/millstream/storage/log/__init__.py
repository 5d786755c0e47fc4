"""The log of one partition: append, read, roll, truncate, flush.

`log.py` appends and reads; the class is built on `removal.py` (truncation and retention),
`durability.py` (flushes) and `base.py` (facts, rolls, watermarks). `slot.py` says where the fast
path of the connection core may append.
"""
