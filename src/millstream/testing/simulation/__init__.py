"""Seeded simulations that run the production code: one log, one broker, a cluster, groups."""
