"""Recorded histories and what must hold of them: pure checkers.

`checker.py` is for what clients were told, `groups.py` for members of groups, and the modules named
`cluster_` for what can be seen of a cluster.
"""
