"""A simulated cluster: keeper, brokers, clients and faults."""
