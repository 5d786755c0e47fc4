"""One module per API: its head says versions, behaviour and what differs from Kafka.

`broker/requests/registry.py` lists which there are; none is loaded before it is needed. A module
has VERSIONS, `handle(context, request)` and `failed(request, error, version)`; CONTRIBUTING.md says
how to add one.
"""
