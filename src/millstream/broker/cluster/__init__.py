"""A broker's part in a cluster: registration, metadata, forwarding, ISR proposals.

`runtime.py` constructs, starts and stops all of it; `broker/broker.py` uses only that.
`member.py`: the member while it runs. It is the first to be notified of a lost session, and decides
when partitions may be led. `BrokerLifecycle` in `controller/cluster/registration.py` keeps the
session and the registration.
`membership.py`: the protocol that handlers use; `metadata.py` implements it.
`identity.py`: which cluster the log directories belong to, before the broker joins; with
`member_directories.py`, which of them are missing. `first_start.py`: whether empty directories are
allowed. `standalone_import.py`: the metadata of a broker that was standalone.

`forwarding.py` passes requests that change metadata to the controller; `metadata_barrier.py` waits
until this broker has the change. `controller_calls.py` sends the broker's own requests to the
controller, those of `isr_sender.py` and `lost_replicas.py`. `settings.py` reads the settings.
"""
