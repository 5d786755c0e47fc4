"""Requests over one connection: pipelined, answered in order, each with a deadline.

Used between brokers and by our own client. `pipeline.py` is the state of a connection without I/O;
`connection.py` is the shell around an asyncio transport; `connections.py` keeps one connection per
address.
"""
