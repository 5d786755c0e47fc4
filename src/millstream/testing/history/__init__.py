"""Recorded histories and what must hold of them: pure checkers.

`checker.py` is for the answers that clients got, `groups.py` for members of groups, and the modules
named `cluster_` for what can be observed of a cluster.
"""
