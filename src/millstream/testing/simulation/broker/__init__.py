"""One simulated broker with its clients and faults."""
