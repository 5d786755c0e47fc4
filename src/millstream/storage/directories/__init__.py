"""One log directory: its lock, its checkpoint files, its health, deferred deletions.

`log_directory.py` puts them together; a failure takes this directory's partitions offline and no
others.
"""
