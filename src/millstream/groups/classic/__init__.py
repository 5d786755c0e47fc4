"""The classic group protocol: members compute the assignment, the coordinator synchronizes them.

`group.py` is the entry point; `join_group.py`, `sync_group.py`, `leave_group.py` and `rebalance.py`
are the protocol, `states.py` the table of states, `core.py` the state of a group.
"""
