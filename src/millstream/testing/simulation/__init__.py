"""Seeded simulations that run the production code: one log, one broker, a cluster, groups.

`make sim` is `run.py`; each part has a package.
"""
