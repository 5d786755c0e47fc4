"""The broker: server, request dispatch, one handler module per API, settings, background tasks.

Start at `broker.py` (the components, and the order in which they start and stop). A request goes
from a shell (`net/socket_shell.py`) through `net/exchange.py` and `requests/dispatch.py` to a
module in `handlers`; `process.py` is the process around it. `cluster` is what only a broker of a
cluster has, `groups` hosts the group coordinator.
"""
