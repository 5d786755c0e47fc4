"""Partition logs on disk: segments, indexes, recovery, producer state, retention, compaction.

Start at `storage/log/log.py` (one partition) and `storage/manager/log_manager.py` (all partitions
of a broker). One thread owns a log; work that blocks is cut into jobs that run in worker threads
and are completed by the owner.
"""
