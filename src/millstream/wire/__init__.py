"""The Kafka protocol without I/O: messages, their codecs, headers, error codes.

Start at `schema.py` (how a message is declared) and `messages/` (one module per API); `codec.py`
turns a declaration into functions when it is first used.
"""
