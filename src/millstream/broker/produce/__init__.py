"""Records of produce requests before the log takes them, and producer ids.

`broker/handlers/produce.py` is the entry point; requests on the fast path (`kernels`) bypass it.
"""
