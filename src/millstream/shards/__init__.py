"""The shell of machines whose state is a partition of an internal topic.

A coordinator (of groups, of transactions) keeps its state in the partitions of a compacted topic.
Each partition that this broker leads has a pure machine, a shard. Start at `coordinator.py`, which
has the shards that are led here; `led_shard.py` is the shell around one of them: it loads the
shard, writes, sends responses and keeps the timer. A shard returns effects (`effects.py`). This
package does not interpret the records.
"""
