"""Millstream: a distributed, replicated commit log that speaks the Kafka protocol.

ARCHITECTURE.md has the layers, the path of five requests through files and functions, and a table
of where to find what. A lower layer never imports a higher one; `make check` proves it.
"""

__version__ = "0.1.0.dev0"
