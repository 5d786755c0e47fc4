"""One broker, put together: server, dispatch, one handler file per API, settings, upkeep.

Start at `broker.py` (what there is and in which order it starts and stops). A request goes from a
shell (`net/socket_shell.py`) through `net/exchange.py` and `requests/dispatch.py` to a module in
`handlers`; `process.py` is the process around it all. `cluster` is what a broker of a cluster has
beside a standalone one, `groups` the place of the group coordinator.
"""
