"""Reading records by partition and offset, ahead of who takes them and within a bound on memory.

`machine.py` decides and `fetching.py` talks to brokers; what they bring are chunks, bytes as the
broker stored them. `client/fetch/decoder.py` makes Arrow record batches of chunks when somebody
wants them. `client/fetch/async_api.py` and `blocking.py` put both together for callers that await
and for callers that block.
"""
