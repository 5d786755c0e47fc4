"""Millstream: a distributed, replicated commit log that speaks the Kafka protocol.

Layers, from the outside in (a lower one never imports a higher one; `make check` proves it):

    cli
    console | pipelines | registry
    broker | client
    replication | groups | transactions | controller
    storage | coordination | security | quotas | rpc
    observe
    wire | runtime
    kernels | model
    testing        may import everything; nothing imports it
"""

__version__ = "0.1.0.dev0"
