"""Benchmarks: each part measures ours beside a peer in one run and returns rows of results."""
