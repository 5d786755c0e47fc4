"""Which topics there are and where their partitions are: pure decisions and a thin durable shell.

`topics.py`, `placement.py`, `controller/standalone/adoption.py` and `views.py` decide; `store.py`
keeps files; `controller/standalone/controller.py` is the controller of a broker that is alone.
"""
