"""Reads records by partition and offset, with prefetching within a bound on memory.

`machine.py` decides and `fetcher.py` does the I/O; they deliver chunks, bytes as the broker stored
them. `decoder.py` makes Arrow record batches of chunks in the reader's thread. `async_api.py` and
`blocking.py` are the APIs for asyncio and for blocking callers.
"""
