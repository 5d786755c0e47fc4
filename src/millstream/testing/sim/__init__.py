"""Simulated seams in virtual time: disk, network, clock, background work, coordination."""
