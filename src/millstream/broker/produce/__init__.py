"""Records of produce requests before the log takes them, and producer ids.

`broker/handlers/produce.py` is the way in; requests on the fast path (`kernels`) never come here.
"""
