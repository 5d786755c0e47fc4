"""How a fetch is read, waits at the tail and is answered; fetch sessions.

`broker/handlers/fetch.py` is the way in. `read.py` reads, `delayed.py` holds fetches and produces
that wait, `tail.py` is the fast path of a consumer at the end of one partition, `sessions.py`
remembers what a client reads.
"""
