"""A broker's part in a cluster: session, registration, metadata, forwarding, ISR proposals.

Start at `runtime.py`, which makes and stops all of it, and `member.py`, which hears first when the
session is lost. `metadata.py` is what handlers see; `forwarding.py` passes requests that change
metadata to the controller, and `metadata_barrier.py` waits until this broker knows the change.
"""
