"""One segment: its file of record batches and the indexes that lead into it.

`segment.py` is one segment, `segment_list.py` those of a log; `sparse_index.py` and `txn_index.py`
are the index files, `files.py` bounds the open descriptors of the process.
"""
