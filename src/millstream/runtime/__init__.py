"""The seams: clock, randomness, disk, network and background work, and their real versions.

Everything above takes these by constructor. `millstream.testing` has the simulated twins.
"""
