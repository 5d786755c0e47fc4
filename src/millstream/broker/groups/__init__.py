"""Consumer groups on a broker: the coordinator's wiring, calls of handlers, metrics.

`service.py` makes the coordinator when it is first needed and owns the offsets topic; `calls.py`
takes a handler's request to its group and brings the answer back. What is decided is in `groups`.
"""
