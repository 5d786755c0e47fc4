"""The group coordinator: both group protocols and committed offsets, as pure machines.

Start at `coordinator.py` (every request) and `shard.py` (all groups in one partition of the offsets
topic, decided without I/O). `classic` and `consumer` are the two protocols, `offsets` the committed
offsets, `records` their format in the log. `shards` loads, writes and sends responses for them.
"""
