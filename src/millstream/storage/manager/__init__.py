"""All logs of a broker over its log directories: start, create, delete, upkeep, stop.

`log_manager.py` is the way in, `changes.py` what it does with many logs at once. It has no timers:
`broker/upkeep.py` calls it.
"""
