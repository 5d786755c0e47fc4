"""A broker's part in a cluster: registration, metadata, forwarding, ISR proposals.

`runtime.py`: everything here made, started and stopped; what `broker/broker.py` knows of it.
`member.py`: the member while it runs. It hears first when the session is lost, and decides when
something may be led. The session and the registration themselves are kept by `BrokerLifecycle` in
`controller/cluster/registration.py`.
`membership.py`: what handlers need of it, as a protocol; `metadata.py` implements that.
`identity.py`: whose the log directories are, before the broker is a member; with
`member_directories.py`, which of them are missing. `first_start.py`: whether there may be none.
`standalone_import.py`: the metadata that a standalone broker brings along.

`forwarding.py` passes requests that change metadata to the controller; `metadata_barrier.py` waits
until this broker knows the change. `controller_calls.py` asks the controller for what the broker
itself wants; `isr_sender.py` and `lost_replicas.py` do so. `settings.py` reads the settings.
"""
