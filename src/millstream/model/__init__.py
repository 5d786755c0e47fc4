"""Value types that everything shares; no I/O.

`ids.py` has the ids as types, `limits.py` the named limits with their reasons, `errors.py` the
operating errors of logs and the base of all others, `invariant.py` the check that survives
`python -O`, `config` the definitions of all settings.
"""
