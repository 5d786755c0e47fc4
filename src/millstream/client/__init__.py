"""The client: topics, offsets and administration of a cluster, ours or Apache Kafka's.

`settings.py` says how to talk, `cluster.py` talks, `blocking.py` is its face for code that blocks.
Importing anything here starts nothing; pyarrow and numpy are loaded by the modules about columns
alone.
"""
