"""The committed offsets of the groups of one partition of the offsets topic.

`machine.py` has what was written and which of it is committed; `requests.py` turns requests into
entries and responses, `loader.py` reads the log, `expiry.py` finds what has expired.
"""
