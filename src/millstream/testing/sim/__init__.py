"""Simulated seams in virtual time: disk, network, clock, background work, coordination.

Start at `world.py` (one seed, one world), `disk.py` (what a power loss leaves) and `network.py`.
"""
