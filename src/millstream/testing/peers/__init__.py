"""Real systems to compare with: Apache Kafka and its tools, fetched and run on this machine.

Tests and benchmarks share them. Nothing here is needed to run a broker.
"""
