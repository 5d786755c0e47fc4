"""The controller of a cluster: pure decisions, and the shells that carry them out.

Start at `active.py` (the elected controller) and `elections.py` (who leads). `candidate.py` elects
the controller, `decisions.py` makes one decision at a time, `fenced_writes.py` writes it,
`metadata_feed.py` and `metadata_follower.py` bring it to every broker. ADR 0018 has the reasons.
"""
