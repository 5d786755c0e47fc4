"""The classic group protocol: members compute the assignment, the coordinator keeps the order.

`group.py` is the way in; `join_group.py`, `sync_group.py`, `leave_group.py` and `rebalance.py` are
the protocol, `states.py` the table of states, `core.py` what a group knows.
"""
