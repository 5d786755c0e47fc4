"""Consumer groups on a broker: the coordinator's wiring, calls of handlers, metrics.

`service.py` creates the coordinator when it is first needed and owns the offsets topic; `calls.py`
passes a handler's request to its group and the answer back. The decisions are in package `groups`.
"""
