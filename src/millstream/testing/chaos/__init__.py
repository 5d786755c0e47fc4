"""Real processes killed, paused and cut off while they work; `make chaos` is `run.py`.

One package for each part; `network` makes the namespaces that a cluster is cut in.
"""
