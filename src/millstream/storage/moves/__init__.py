"""Partitions that move between the log directories of one broker.

`queue.py` takes the wishes, one move at a time; `directory_move.py` is one of them while the
partition is written and read; `marks.py` and `duplicate_copies.py` resolve at a start what a crash
interrupted.
"""
