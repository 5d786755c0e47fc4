"""Opening a log: quickly after a clean stop, after a crash with recovery.

`loader.py` has the steps, `tidy.py` puts the files in order, `crash_recovery.py` reads a segment
and keeps its valid prefix.
"""
