"""Real processes killed, paused and cut off while they work; `make chaos` is `run.py`.

One package for each part; `network` has the namespaces between which a cluster is partitioned.
"""
