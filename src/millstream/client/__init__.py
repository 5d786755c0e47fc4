"""The client: topics, offsets, administration and records as Arrow columns; for any Kafka.

`settings.py` says how to talk, `cluster.py` talks (asyncio), `blocking.py` is the blocking API.
`fetch` reads records by partition and offset, `produce` writes them. Importing anything here starts
nothing; only the modules about columns load pyarrow.
"""
