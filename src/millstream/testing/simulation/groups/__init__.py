"""Consumer groups of a simulated cluster."""
