"""The next-generation group protocol (KIP-848): the broker computes the assignment.

`group.py` is the way in. A request is decided on the state that the applied entries made; what is
decided goes out as a `Write`, and only `apply` changes the state. Timers are the only thing beside
it.
"""
