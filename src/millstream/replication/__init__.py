"""The leader of one partition: who may write and read, and from when on a record counts.

Start at `partition.py` (one) and `partitions.py` (all that this broker leads). Today the broker
is alone in sync with itself; followers, changes of the in-sync set and truncation are not built
yet.
"""
