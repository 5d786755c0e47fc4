"""Writing records: which batch goes when, to whom, and what its answer means.

`machine.py` decides and does no I/O; `sender.py` is its shell on a Cluster.
`client/produce/row_partitioner.py` turns columns into batches of partitions. The faces are
`client/column_producer.py` for a loop and `client/column_writer.py` for code that blocks.
"""
