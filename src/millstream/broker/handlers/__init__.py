"""One module per API: its docstring has versions, behaviour and differences from Kafka.

`broker/requests/registry.py` lists them; none is imported before it is needed. A module has
VERSIONS, `handle(context, request)` and `failed(request, error, version)`; CONTRIBUTING.md says how
to add one.
"""
