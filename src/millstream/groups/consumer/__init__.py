"""The consumer (next-generation) group protocol (KIP-848): the broker computes the assignment.

`group.py` is the way in. A request is decided on the state that the applied entries made; the
decision goes out as a `Write`, and only `apply` changes the state. Timers are the one exception.
"""
