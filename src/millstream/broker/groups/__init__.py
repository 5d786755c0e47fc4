"""Consumer groups on a broker: the coordinator's wiring, calls of handlers, gauges."""
