"""The idempotent producer: which batch is sent when, to which broker, and what responses mean.

`machine.py` decides and does no I/O; `sender.py` is its shell on a Cluster. `row_partitioner.py`
turns columns into batches of partitions. Users call `client/column_producer.py` (asyncio) or
`client/column_writer.py` (blocking).
"""
