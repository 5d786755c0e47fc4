"""A broker as a member of a cluster: registration, metadata, forwarding, ISR proposals."""
