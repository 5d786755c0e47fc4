"""Machines whose state is a partition of an internal topic: loaded, written, answered for, timed.

A coordinator (of groups, of transactions) keeps its state in the partitions of a compacted topic.
Each partition that this broker leads has a pure machine, a shard. Start at `coordinator.py`, which
holds the shards that are led here; `led_shard.py` is the shell around one of them. What a shard
wants done it says by effects (`effects.py`). Nothing here knows what the records mean.
"""
