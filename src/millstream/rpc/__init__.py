"""Requests over one connection: pipelined, answered in order, each with a deadline.

Brokers among themselves and our own client use it. `pipeline.py` decides and holds the bytes
without any I/O; `connection.py` is the shell around an asyncio transport; `connections.py` keeps
one per address.
"""
