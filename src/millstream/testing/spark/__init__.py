"""Spark sessions and clusters for tests and benchmarks."""
