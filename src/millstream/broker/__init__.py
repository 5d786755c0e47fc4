"""One broker, put together: server, dispatch, one handler file per API, settings, upkeep.

Start at `broker.py` (what there is and in which order it starts and stops). A request goes from a
shell (`broker/net/socket_shell.py`) through `broker/net/exchange.py` and
`broker/requests/dispatch.py` to a file in `handlers/`; `process.py` is the process around it all.
"""
