"""An embedded coordination server that speaks ZooKeeper's wire protocol, for one machine.

`machine.py` decides without clock, disk or network; `state.py` is what a restart must find again;
`journal.py` keeps it on disk; `server.py` is the shell around all of them.
"""
