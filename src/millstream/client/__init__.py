"""The client: topics, offsets, administration and records as Arrow columns, for any Kafka broker.

`settings.py` has the settings, `cluster.py` the asyncio API, `blocking.py` the blocking API.
`fetch` reads records by partition and offset, `produce` writes them. Importing anything here starts
nothing; only the modules about columns load pyarrow.
"""
