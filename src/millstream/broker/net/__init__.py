"""Sockets and their input and output: listeners, connections, limits.

`server.py` accepts, `socket_shell.py` carries unencrypted sockets in an epoll of its own, and
`transport_shell.py` carries asyncio transports. `exchange.py` is one event-loop iteration: all
requests that arrived together, one write per partition, then the answers.
"""
