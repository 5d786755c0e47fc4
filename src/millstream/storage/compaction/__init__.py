"""Log compaction: the newest record of every key is kept, older ones are removed.

`plan.py` decides on the owner's thread which part of a log is cleaned. `job.py` does the work in
another thread: one pass over the dirty part fills a map of keys (`key_pass.py`), a second one over
everything up to there writes new segments (`batch_filter.py`, `output.py`). `swap.py` puts each of
them in place of its inputs in steps that survive a crash between any two;
`storage/compaction/log_cleaning.py` drives the steps and jobs of one log, `cleaner.py` chooses the
log.

Nothing but renames happens on the owner's thread, and appends go on all the time: only closed
segments are touched.
"""
