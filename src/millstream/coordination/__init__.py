"""Sessions, ephemeral nodes, watches, versioned writes: ZooKeeper's model behind one port.

`port.py` is what the rest of the broker sees; `kazoo_coordination.py` reaches a ZooKeeper ensemble
or the embedded server of `keeper/`, which speaks the same protocol.
"""
