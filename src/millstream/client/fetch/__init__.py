"""Reading records by partition and offset, ahead of their reader and within a bound on memory.

`machine.py` decides and `fetcher.py` talks to brokers; what they bring are chunks, bytes as the
broker stored them. `decoder.py` makes Arrow record batches of chunks in the reader's thread.
`async_api.py` and `blocking.py` put both together, for callers that await and callers that block.
"""
