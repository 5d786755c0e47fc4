"""Kits for the shell around the machine of a partition of an internal topic."""
