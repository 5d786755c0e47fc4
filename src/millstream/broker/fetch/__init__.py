"""Reading for Fetch requests, waiting at the tail, answers, and fetch sessions.

`broker/handlers/fetch.py` is the entry point. `read.py` reads, `delayed.py` holds fetches and
produces that wait, `tail.py` is the fast path of a consumer at the end of one partition,
`sessions.py` remembers what a client reads, `large.py` serves requests of thousands of partitions.
"""
