"""Which topics exist, where their partitions are and who leads them: decisions and shells.

`image.py` is the cluster at one moment; `topics.py`, `placement.py` and `views.py` decide without
I/O. `cluster` is the controller of a cluster, which keeps its state in the coordination service;
`standalone` that of a standalone broker, which keeps it in files (`store.py`).
"""
