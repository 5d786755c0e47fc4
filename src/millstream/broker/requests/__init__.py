"""From a decoded request to its handler and back.

Start at `dispatch.py`. `registry.py` lists the APIs and their versions, `context.py` is what a
handler gets with each request, `services.py` what all handlers share, and `error_codes.py` the one
place where errors become codes.
"""
